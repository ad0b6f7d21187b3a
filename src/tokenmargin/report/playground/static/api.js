// Questions to the server. Answers that come back after a newer one are dropped.

export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: typeof body === "string" ? body : JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({ detail: response.statusText }));
  if (!response.ok) throw new Error(explain(answer.detail));
  return answer;
}

function explain(detail) {
  if (typeof detail === "string") return detail;
  return detail.map((item) => `${item.loc.slice(1).join(" ")}: ${item.msg}`).join("; ");
}

/** Asks for the newest state; at most two questions are under way, and what is painted never goes back in time. */
export class Asker {
  constructor(path, paint, fail) {
    Object.assign(this, { path, paint, fail, sent: 0, painted: 0, flying: 0, waiting: null });
  }

  ask(body, context) {
    if (this.flying >= 2) {
      this.waiting = [body, context];
      return;
    }
    this.send(body, context);
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
      if (this.waiting) {
        const [next, its] = this.waiting;
        this.waiting = null;
        this.send(next, its);
      }
    }
  }
}
