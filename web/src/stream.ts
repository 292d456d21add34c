// /events, read with fetch: an EventSource could not send the token.
import type { Report } from "./report";

export interface Hooks {
  report: (report: Report) => void;
  state: (state: "live" | "lost" | "wait", why: string) => void;
  refused: (wrong: boolean) => void;  // a token is wanted; there was one, and it is wrong
}

const kSilence = 15_000;  // ms without a report: the connection is dead

export class Stream {
  private current: AbortController | undefined;
  private retry = 0;
  private failures = 0;
  constructor(private readonly hooks: Hooks) {}

  token() {
    return sessionStorage.getItem("token") ?? "";
  }

  // Whatever ran before is over.
  open(query: string) {
    this.close();
    const here = (this.current = new AbortController());
    this.read(query, here).catch((error: unknown) => {
      if (this.current !== here) return;
      this.hooks.state("lost", error instanceof Problem ? error.message : "no connection");
      this.again(query);
    });
  }

  close() {
    clearTimeout(this.retry);
    this.current?.abort();
    this.current = undefined;
  }

  private again(query: string) {
    this.failures = Math.min(this.failures + 1, 5);
    this.retry = window.setTimeout(() => this.open(query), 500 * 2 ** this.failures);
  }

  private async read(query: string, here: AbortController) {
    let alarm = window.setTimeout(() => here.abort(), kSilence);
    const token = this.token();
    try {
      const answer = await fetch(`events?${query}`, {
        cache: "no-store",
        headers: token ? { Authorization: `Bearer ${token}` } : {},
        signal: here.signal,
      });
      if (answer.status === 401) {
        sessionStorage.removeItem("token");
        return this.hooks.refused(token !== "");
      }
      if (!answer.ok || !answer.body) throw new Problem((await answer.text()).trim());
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Problem("the connection has ended");
        const parts = (rest + value).split("\n\n");
        rest = parts.pop() ?? "";
        const last = parts.filter((p) => p.startsWith("data: "));
        for (const part of last) {
          clearTimeout(alarm);
          alarm = window.setTimeout(() => here.abort(), kSilence);
          this.failures = 0;
          if (this.current !== here) return;
          this.hooks.report(JSON.parse(part.slice(6)) as Report);
          this.hooks.state("live", "");
        }
      }
    } finally {
      clearTimeout(alarm);
    }
  }
}

class Problem extends Error {}
