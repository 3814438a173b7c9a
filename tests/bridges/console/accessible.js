// Faults of what the browser shows, in words: run as the body of a function.

const rgba = (text) => { const found = text.match(/[\d.]+/g).map(Number); return found.length > 3 ? found : [...found, 1]; };
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const light = (colour) => { const [r, g, b] = colour.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const contrast = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
function ground(element) {
  const layers = [];
  for (let one = element; one; one = one.parentElement) {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    if (colour[3] > 0) layers.push(colour);
    if (colour[3] === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
}
const faults = [];
function text(element, colour, words, below) {
  const style = getComputedStyle(element), size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const found = contrast(over(rgba(colour), below), below);
  if (found < (large ? 3 : 4.5)) faults.push(`${found.toFixed(2)}: ${element.tagName} ${element.className.baseVal ?? element.className} "${words.slice(0, 40)}"`);
}
for (const element of document.body.querySelectorAll("*")) {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  if (!box.width || !box.height || style.visibility === "hidden" || element.closest(":disabled")) continue;
  const words = [...element.childNodes].filter((one) => one.nodeType === 3).map((one) => one.textContent.trim()).join(" ").trim();
  if (element.placeholder && !element.value) text(element, getComputedStyle(element, "::placeholder").color, element.placeholder, ground(element));
  if (element.tagName === "text") {
    const behind = element.parentElement.querySelector("rect"), below = ground(element.ownerSVGElement);
    const fill = behind ? rgba(getComputedStyle(behind).fill) : null;
    if (fill) fill[3] *= Number(getComputedStyle(behind).fillOpacity);
    text(element, style.fill, words, fill ? over(fill, below) : below);
  } else if (words && !element.ownerSVGElement) text(element, style.color, words, ground(element));
  const named = () => element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.labels?.[0]?.textContent.trim();
  if (/^(INPUT|SELECT|TEXTAREA|PROGRESS|METER)$/.test(element.tagName) && !named()) faults.push(`${element.tagName} has no name: ${element.outerHTML.slice(0, 80)}`);
  if (/^(BUTTON|A)$/.test(element.tagName) && !element.textContent.trim() && !named()) faults.push(`${element.tagName} has no name: ${element.outerHTML.slice(0, 80)}`);
  if (element.getAttribute("role") === "img" && !named()) faults.push(`a picture has no name: ${element.outerHTML.slice(0, 80)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) faults.push(`two elements are ${id}`);
return faults;
