// Search where the theme's own has no worker: the site opened as a file. The index is a script beside the pages.
(function () {
  if (location.protocol !== "file:") return;
  const base = JSON.parse(document.getElementById("__config").textContent).base;
  const bar = document.querySelector(".md-header__inner");
  const box = Object.assign(document.createElement("input"), { type: "search", placeholder: "Search", className: "file-search" });
  box.setAttribute("aria-label", "Search the documentation");
  const list = Object.assign(document.createElement("ol"), { className: "file-search-results", hidden: true });
  bar.append(box, list);
  document.querySelectorAll(".md-search, label[for=__search]").forEach((old) => old.remove());

  let index = null;
  const load = () => new Promise((done) => {
    if (index) return done();
    const script = document.createElement("script");
    script.src = `${base}/search/search_index.js`;
    script.onload = () => {
      index = __index.docs.map((page) => ({ ...page, plain: page.text.replace(/<[^>]*>/g, " "), name: page.title.replace(/<[^>]*>/g, "") }));
      done();
    };
    document.head.append(script);
  });

  /** Pages that hold every word: the glossary and those that have it in the title first, the inside of the code last. */
  function find(words) {
    return index
      .map((page) => {
        const title = page.name.toLowerCase(), text = page.plain.toLowerCase();
        if (!words.every((word) => title.includes(word) || text.includes(word))) return null;
        const score = words.reduce((sum, word) => sum + (title === word ? 40 : title.includes(word) ? 10 : 0) + Math.min(5, text.split(word).length - 1), /^glossary/.test(page.location) ? 30 : /^api\//.test(page.location) ? -20 : 0);
        return { page, score };
      })
      .filter(Boolean)
      .sort((a, b) => b.score - a.score || a.page.plain.length - b.page.plain.length)
      .slice(0, 12);
  }

  function excerpt(text, word) {
    const at = Math.max(0, text.toLowerCase().indexOf(word) - 50);
    return (at ? "… " : "") + text.slice(at, at + 130).replace(/\s+/g, " ") + "…";
  }

  async function show() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    list.hidden = !words.length;
    if (!words.length) return;
    await load();
    const found = find(words).map(({ page }) => {
      const link = Object.assign(document.createElement("a"), { href: `${base}/${page.location}` });
      const name = Object.assign(document.createElement("b"), { textContent: page.name });
      link.append(name, Object.assign(document.createElement("span"), { textContent: excerpt(page.plain, words[0]) }));
      const item = document.createElement("li");
      item.append(link);
      return item;
    });
    list.replaceChildren(...(found.length ? found : [Object.assign(document.createElement("li"), { textContent: "Nothing found" })]));
  }

  box.addEventListener("input", show);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") { box.value = ""; show(); }
    if (event.key === "/" && !/input|textarea|select/i.test(event.target.tagName)) { event.preventDefault(); box.focus(); }
    if (event.key === "Enter" && event.target === box) list.querySelector("a")?.click();
  });
})();
