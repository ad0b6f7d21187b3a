// Questions to the server. Answers that come back after a newer one are dropped.

export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: typeof body === "string" ? body : JSON.stringify(body),
  }).catch(() => { throw new Error("The server does not answer; start it again with `tokenmargin playground`."); });
  const answer = await response.json().catch(() => ({ detail: response.statusText }));
  if (!response.ok) throw new Error(explain(answer.detail));
  return answer;
}

function explain(detail) {
  if (typeof detail === "string") return detail;
  return detail.map((item) => `${item.loc.slice(1).join(" ")}: ${item.msg}`).join("; ");
}

const PATIENCE = 300; // milliseconds to wait for an answer before asking anew beside it

/** Asks for the newest state, one question at a time; what is painted never goes back in time. */
export class Asker {
  constructor(path, paint, fail) {
    Object.assign(this, { path, paint, fail, sent: 0, painted: 0, flying: 0, waiting: null, timer: 0 });
  }

  ask(body, context) {
    this.waiting = [body, context];
    if (this.flying === 0) this.next();
  }

  next() {
    clearTimeout(this.timer);
    if (!this.waiting) return;
    const [body, context] = this.waiting;
    this.waiting = null;
    this.send(body, context);
    this.timer = setTimeout(() => this.next(), PATIENCE);
  }

  async send(body, context) {
    const number = ++this.sent;
    this.flying += 1;
    try {
      const answer = await post(this.path, body);
      if (number > this.painted) {
        this.painted = number;
        this.paint(answer, context);
      }
    } catch (error) {
      if (number > this.painted) this.fail(error);
    } finally {
      this.flying -= 1;
      this.next();
    }
  }
}
