// A classifier of texts: two numbers per token. The same decisions as the library's, for words cut in the same way.

const LEAST = Math.log(2); // words that together do not double the odds decide nothing

// As the library cuts: runs of letters, digits and marks; hashtags whole; each picture with what joins and colours it.
const JOINED = "[\\u200d\\ufe0e\\ufe0f\\u{1f3fb}-\\u{1f3ff}]*", PICTURE = `(?![\\0-\\x7f])\\p{So}${JOINED}`;
const WORDS_AND_PICTURES = new RegExp(`(?<![\\p{L}\\p{N}\\p{M}])#(?=[\\p{L}\\p{N}])[\\p{L}\\p{N}\\p{M}]+|[\\p{L}\\p{N}\\p{M}]+|${PICTURE}(?:(?<=\\u200d)${PICTURE})*`, "gu");
const MARKUP = /<[^<>\n]{1,500}>|&(?:#[0-9]{1,7}|#x[0-9a-fA-F]{1,6}|[A-Za-z]{2,8});/g;

/** A model from the data in a page: tokens joined by line ends, and their numbers as 32-bit floats. */
export function openModel(data) {
  const names = data.tokens.split("\n"), numbers = new Float32Array(Uint8Array.from(atob(data.numbers), (c) => c.charCodeAt(0)).buffer);
  const width = numbers.length / names.length, known = new Map(names.map((name, row) => [name, row]));
  const pattern = data.symbols ? WORDS_AND_PICTURES : /[\p{L}\p{N}\p{M}]+/gu;
  return { ...data, names, known, pattern, logit: (row) => numbers[row * width], values: (row) => [...numbers.subarray(row * width + 1, (row + 1) * width)] };
}

// Scripts written without blanks: their characters are the words.
const UNSPACED = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3040-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const UNSPACED_PART = new RegExp(`[${UNSPACED}]|[^${UNSPACED}]+`, "gu");

/** The words of a text: where each stands, and how the vocabulary spells it. */
export function readWords(model, text) {
  const cut = (match) => [...match[0].matchAll(UNSPACED_PART)].map((part) => ({ start: match.index + part.index, raw: part[0] }));
  const bare = text.replace(MARKUP, (tag) => " ".repeat(tag.length));
  return [...bare.matchAll(model.pattern)].flatMap(cut).map((word) => ({ ...word, name: word.raw.normalize("NFKC").toLowerCase().replace(/[\ufe0e\ufe0f]/g, "") }));
}

/**
 * The decision on words, without those whose numbers are in `gone` and without those spelled `without`: the outputs f, and
 * every known token with its logit, weight, values, contributions and the places [word, length] it stands at.
 */
export function decideOn(model, words, { gone = new Set(), without = null } = {}) {
  const places = new Map();
  for (let n = 1; n <= model.ngrams; n++) {
    for (let i = 0; i + n <= words.length; i++) {
      const part = words.slice(i, i + n);
      if (part.some((word, k) => gone.has(i + k) || word.name === without)) continue;
      const row = model.known.get(part.map(({ name }) => name).join(" "));
      if (row !== undefined) places.set(row, [...(places.get(row) ?? []), [i, n]]);
    }
  }
  if (!places.size) return { f: model.prior, start: model.prior, sink: 1, tokens: [] };
  const rows = [...places.keys()], top = Math.max(model.sink, ...rows.map(model.logit));
  const e = rows.map((row) => (model.repeats ? places.get(row).length : 1) * Math.exp(model.logit(row) - top)), rest = Math.exp(model.sink - top), Z = e.reduce((sum, x) => sum + x, rest);
  const scale = Math.exp((1 - model.exponent) * top) / Z ** model.exponent;
  const tokens = rows.map((row, j) => {
    const values = model.values(row);
    return { name: model.names[row], logit: model.logit(row), weight: e[j] / Z, values, parts: values.map((value) => scale * e[j] * value), places: places.get(row) };
  });
  return { f: model.intercept.map((b, k) => tokens.reduce((sum, { parts }) => sum + parts[k], b)), start: model.intercept, sink: rest / Z, tokens };
}

/** The probability of every class. */
export function chancesOf(f) {
  if (f.length === 1) return [1 / (1 + Math.exp(f[0])), 1 / (1 + Math.exp(-f[0]))];
  const top = Math.max(...f), e = f.map((x) => Math.exp(x - top)), sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

/** Whether nothing is decided: of two classes, all words together change the odds by less than a factor of two. */
export const abstains = ({ f, start }) => f.length === 1 && Math.abs(f[0] - start[0]) < LEAST;

/** Why nothing is decided. */
export function abstainWords({ tokens }, words) {
  if (!words.length) return "Type a sentence.";
  if (!tokens.length) return "No word of this sentence is known to the model.";
  const strong = tokens.filter(({ parts }) => Math.abs(parts[0]) >= LEAST);
  const named = strong.slice(0, 3).map(({ name }) => `“${name}”`);
  if (tokens.length > named.length) named.push("the others");
  return strong.length && named.length > 1 ? `Undecided: ${named.slice(0, -1).join(", ")} and ${named.at(-1)} cancel.` : "No word here that decides: together they do not even double the odds.";
}

/** Words and decisions, with and without those left out, from the server's answers; it counts characters, not their halves. */
export function fromServer(text, now, all) {
  const characters = [...text], at = (k) => characters.slice(0, k).join("").length;
  const words = all.words.map(({ start, end, token }) => ({ start: at(start), raw: text.slice(at(start), at(end)), name: token ?? "" }));
  const decision = (answer) => {
    const places = new Map();
    answer.words.forEach(({ token }, k) => { if (token !== null) places.set(token, [...(places.get(token) ?? []), [k, 1]]); });
    const tokens = [...places].map(([name, at]) => {
      const sum = (what) => at.reduce((total, [k]) => total + answer.words[k][what], 0), weight = sum("weight"), part = sum("contribution");
      return { name, logit: Math.log(Math.max(weight, 1e-12)), weight, values: [weight > 0 ? part / weight : 0], parts: [part], places: at };
    });
    const sink = Math.max(0, 1 - tokens.reduce((sum, { weight }) => sum + weight, 0));
    return { f: [answer.output], start: [answer.start], sink, sinkLogit: Math.log(Math.max(sink, 1e-12)), tokens };
  };
  return [words, decision(now), decision(all)];
}
