"""Model residency: loading on demand, eviction of idle models, voice selection and voice enrolment."""
