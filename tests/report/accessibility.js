// Faults a page must not have: controls without a name, ids twice, small or faint text, nothing to focus, no language.
() => {
  const faults = [];
  const visible = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== "hidden";
  const nameOf = (node) =>
    node.getAttribute("aria-label") || node.getAttribute("title") || node.textContent.trim() ||
    [...(node.labels ?? [])].map((label) => label.textContent.trim()).join(" ") ||
    (node.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
  const controls = 'button, a[href], input, select, textarea, summary, [role="button"], [tabindex="0"]';
  for (const node of document.querySelectorAll(controls)) {
    if (visible(node) && !nameOf(node)) faults.push(`no name: ${node.outerHTML.slice(0, 100)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) faults.push(`id twice: ${id}`);
  if (!document.documentElement.lang) faults.push("the page has no language");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not exactly one h1");
  for (const node of document.querySelectorAll('svg[role="img"]')) if (!node.getAttribute("aria-label")) faults.push(`picture without words: ${node.id}`);

  const rgb = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return rgb(getComputedStyle(document.body).backgroundColor);
  };
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !visible(node) || node.closest("svg, script, style, :disabled, [hidden], .skip, .unseen, [aria-hidden='true']")) continue;
    const style = getComputedStyle(node), [a, b] = [light(rgb(style.color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${node.outerHTML.slice(0, 90)}`);
    if (parseFloat(style.fontSize) < 11) faults.push(`small: ${style.fontSize} ${node.outerHTML.slice(0, 90)}`);
  }
  return faults;
}
