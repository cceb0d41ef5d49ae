/** Creates elements of the page. */

/**
 * An element with properties (`dataset` included) and children.
 * @param {string} name
 * @param {object} properties
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function element(name, properties = {}, ...children) {
  const { dataset = {}, ...others } = properties;
  const created = Object.assign(document.createElement(name), others);
  Object.assign(created.dataset, dataset);
  created.append(...children);
  return created;
}
