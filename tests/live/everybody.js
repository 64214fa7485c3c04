// What of a page some people cannot use: small targets, pale text and edges, too much width
const shown = one => one.checkVisibility() && one.getClientRects().length;

function least(one) {  // pixels; a label is pressed in place of its field
  const box = (one.closest("label") || one).getBoundingClientRect();
  return Math.min(box.width, box.height);
}

function numbers(colour) { return colour.match(/[\d.]+/g).map(Number); }

function luminance(colour) {  // WCAG 2.2, relative luminance
  const linear = colour.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function ratio(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function ground(one) {  // the colour behind it
  for (; one; one = one.parentElement) {
    const colour = numbers(getComputedStyle(one).backgroundColor);
    if (colour.length < 4 || colour[3]) return colour;
  }
  return [255, 255, 255];
}

function isWritten(one) {
  const isText = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return isText && shown(one) && !one.disabled && !one.classList.contains("unseen");
}

function edge(one) {  // how well its edge or its own ground is told from what is around
  const around = ground(one.parentElement);
  const border = numbers(getComputedStyle(one).borderColor);
  return Math.max(ratio(border, around), ratio(ground(one), around));
}

const controls = [...document.querySelectorAll("button, input, select, a[href]")].filter(shown);
const written = [...document.querySelectorAll("body *")].filter(isWritten);
const framed = controls.filter(one => one.matches("button, select, input:not([type])"));
return {
  small: controls.filter(one => least(one) < 44).map(one => one.outerHTML),
  pale: written.filter(one => ratio(numbers(getComputedStyle(one).color), ground(one)) < 4.5)
    .map(one => one.outerHTML),
  edges: framed.filter(one => edge(one) < 3).map(one => one.outerHTML),
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
};
