from tests.unit.cosyvoice.conftest import one_thread as one_thread
