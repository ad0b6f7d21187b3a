// What can be taken away here besides: the problem file.

import { post } from "./api.js";
import { wanted } from "./state.js";

export async function problemFile(state) {
  return JSON.stringify(await post("api/problem/save", wanted(state)));
}

export const readProblem = (text) => post("api/problem/load", text);
