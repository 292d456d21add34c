// The page: one report each second, shown.
import { Charts, History, poolKey, spark } from "./charts";
import { by, bytes, count, counted, duration, each, make, percent, rate, Table, text } from "./dom";
import type { Host, Peer, Percentiles, Pool, Report, Setting, Since, SlowWait, Top } from "./report";
import { Stream } from "./stream";

// ---- what this viewer has chosen ----

const choice = { order: "waiting", find: "", from: 0 };
let chosen: { database: string; user: string } | undefined;
let since: Since = "minute";
let frozen = false;
let last: Report | undefined;
let settings: Setting[] = [];

const history = new History();
const charts = new Charts();

const query = () => new URLSearchParams({ ...choice, from: String(choice.from), ...chosen }).toString();

function choose(pool: { database: string; user: string } | undefined) {
  chosen = pool && chosen && poolKey(pool) === poolKey(chosen) ? undefined : pool;
  if (last) show(last);
  reopen();
}

// ---- tables ----

const who = (n: number, max: number) => (max > 0 ? `${count(n)} of ${count(max)}` : count(n));
let mostServers = 1;  // of a database or user in the lists

// Without a limit it is measured by the largest around.
function bar(cell: HTMLElement, used: number, limit: number, largest: number, label: string) {
  const box = cell.firstElementChild as HTMLElement;
  box.classList.toggle("full", limit > 0 && used >= limit);
  const fill = box.querySelector<HTMLElement>("i > span")!;
  fill.style.transform = `scaleX(${Math.min(1, used / Math.max(1, limit || largest))})`;
  text(box.lastElementChild!, label);
}
const emptyBar = () => make("span", { class: "bar" }, make("i", {}, make("span")), make("span"));

const svg = (tag: string, attributes: Record<string, string>) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

const pools = new Table<Pool>("pool-table", [
  { name: "pool", title: "Database / user", value: poolKey,
    create: (p) => {
      const button = make("button", { type: "button", class: "pool", "aria-pressed": "false",
                                      title: `${p.database} / ${p.user}: show in the charts` },
                          make("bdi", {}, p.database), make("small", {}, " / ", make("bdi", {}, p.user)));
      button.addEventListener("click", () => choose({ database: p.database, user: p.user }));
      return button;
    },
    update: (cell, p) => cell.firstElementChild!.setAttribute(
      "aria-pressed", String(chosen !== undefined && poolKey(chosen) === poolKey(p))) },
  { name: "cl_waiting", title: "Waiting", help: "clients that wait for a server", number: true, value: (p) => p.cl_waiting, shown: (p) => count(p.cl_waiting) },
  { name: "maxwait", title: "Longest wait", help: "how long the first in the queue has waited", number: true, value: (p) => p.maxwait, shown: (p) => (p.cl_waiting ? duration(p.maxwait) : "–") },
  { name: "servers", title: "Servers", help: "server connections, of pool_size", value: (p) => p.servers, create: emptyBar,
    update: (cell, p) => bar(cell, p.servers, p.size, p.servers, p.size > 0 ? `${count(p.servers)} of ${count(p.size)}` : count(p.servers)) },
  { name: "spark", title: "Last minute", help: "clients: active blue, waiting orange", value: () => null,
    create: () => {
      const picture = svg("svg", { class: "spark", viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" });
      picture.append(svg("path", { class: "a" }), svg("path", { class: "w" }));
      return picture as SVGElement;
    },
    update: (cell, p) => {
      const lines = spark(history.of(poolKey(p)));
      const paths = cell.querySelectorAll("path");
      paths[0].setAttribute("d", lines.active);
      paths[1].setAttribute("d", lines.waiting);
    } },
  { name: "cl_active", title: "Clients", help: "clients that do not wait", number: true, value: (p) => p.cl_active, shown: (p) => count(p.cl_active) },
  { name: "sv_active", title: "Active", help: "servers linked to a client", number: true, value: (p) => p.sv_active, shown: (p) => count(p.sv_active) },
  { name: "sv_idle", title: "Idle", help: "servers that are free", number: true, value: (p) => p.sv_idle, shown: (p) => count(p.sv_idle) },
  { name: "queries", title: "Queries/s", number: true, value: (p) => p.queries, shown: (p) => rate(p.queries) },
  { name: "mean_query", title: "Query", help: "mean time of the last second's queries", number: true, value: (p) => p.mean_query, shown: (p) => (p.queries ? duration(p.mean_query) : "–") },
  { name: "wait_p99", title: "Wait p99", help: "since the start, 99 of 100 waits were no longer", number: true, value: (p) => p.wait.p99 ?? null, shown: (p) => duration(p.wait.p99) },
  { name: "mode", title: "Mode", few: true, value: (p) => p.mode },
], poolKey, "No pool matches.");

const latencyNames: Record<string, [string, string]> = {
  wait: ["Wait for a server", "at every assignment; most wait for nothing"],
  query: ["Query", "from a request to the end of its answer"],
  transaction: ["Transaction", "from its first request to its end"],
  login: ["Client login", "from accept until it is authenticated"],
  connect: ["Server connect", "until the connection can be used"],
};
const latencies = new Table<[string, Percentiles]>("latency-table", [
  { name: "what", title: "", value: ([what]) => what, create: ([what]) => make("span", { title: latencyNames[what]?.[1] ?? "" }, latencyNames[what]?.[0] ?? what) },
  { name: "count", title: "Count", number: true, value: ([, p]) => p.count, shown: ([, p]) => count(p.count) },
  ...(["p50", "p90", "p99", "p999", "max"] as const).map((key) => ({
    name: key, title: key === "p999" ? "p99.9" : key, number: true, value: ([, p]: [string, Percentiles]) => p[key] ?? null,
    shown: ([, p]: [string, Percentiles]) => duration(p[key]) })),
], ([what]) => what, "");

const slowWaits = new Table<SlowWait>("wait-table", [
  { name: "ended", title: "Ended", value: (w) => w.ended, shown: (w) => new Date(w.ended).toLocaleTimeString() },
  { name: "waited", title: "Waited", number: true, value: (w) => w.waited, shown: (w) => duration(w.waited) },
  { name: "outcome", title: "Got", value: (w) => (w.in_vain ? "nothing" : "a server") },
  { name: "pool", title: "Database / user", value: (w) => `${w.database} / ${w.user}` },
  { name: "servers", title: "Servers", help: "of the pool, when the wait was over", number: true, value: (w) => w.servers,
    shown: (w) => who(w.servers, w.size) },
  { name: "client", title: "Client", help: "id of SHOW CLIENTS, and its address", value: (w) => w.client,
    shown: (w) => `${w.client} at ${w.addr}:${w.port}` },
  { name: "application", title: "Application", value: (w) => w.application_name },
  { name: "worker", title: "Worker", few: true, number: true, value: (w) => w.worker },
], (w) => `${w.client} ${w.waited}`, "Nobody has waited long.");

const badge = () => make("span", { class: "badge" });
const hosts = new Table<Host>("host-table", [
  { name: "database", title: "Database", value: (h) => h.database },
  { name: "host", title: "Host", value: (h) => h.address || `${h.host}:${h.port}` },
  { name: "state", title: "State", value: (h) => h.state, create: badge,
    update: (cell, h) => {
      const b = cell.firstElementChild!;
      text(b, h.state);
      b.className = `badge ${h.state === "up" ? "good" : h.state === "out" ? "bad" : h.state === "returning" ? "warn" : ""}`;
    } },
  { name: "role", title: "Role", value: (h) => h.role },
  { name: "open", title: "Servers", number: true, value: (h) => h.open, shown: (h) => count(h.open) },
  { name: "active", title: "Active", number: true, value: (h) => h.active, shown: (h) => count(h.active) },
  { name: "p50", title: "Query p50", help: "last minute", number: true, value: (h) => h.minute?.p50 ?? null, shown: (h) => duration(h.minute?.p50) },
  { name: "p99", title: "Query p99", help: "last minute", number: true, value: (h) => h.minute?.p99 ?? null, shown: (h) => duration(h.minute?.p99) },
  { name: "failures", title: "Failures", number: true, value: (h) => h.failures, shown: (h) => count(h.failures) },
  { name: "last_error", title: "Last error", few: true, value: (h) => h.last_error },
], (h) => JSON.stringify([h.database, h.host, h.port, h.address]), "No database has a host.");

const peers = new Table<Peer>("peer-table", [
  { name: "peer", title: "Peer", value: (p) => p.peer },
  { name: "host", title: "Host", value: (p) => `${p.host}:${p.port}` },
  { name: "connections", title: "Connections", number: true, value: (p) => p.connections },
  { name: "connecting", title: "Connecting", number: true, value: (p) => p.connecting },
  { name: "sent", title: "Cancels sent", number: true, value: (p) => p.sent },
  { name: "waiting", title: "Cancels waiting", number: true, value: (p) => p.waiting },
], (p) => String(p.peer), "");

const top = (id: string, of: string) => new Table<Top>(id, [
  { name: "name", title: of, value: (t) => t.name },
  { name: "servers", title: "Servers", value: (t) => t.servers, create: emptyBar,
    update: (cell, t) => bar(cell, t.servers, t.max_servers, mostServers, who(t.servers, t.max_servers)) },
  { name: "clients", title: "Clients", number: true, value: (t) => t.clients, shown: (t) => who(t.clients, t.max_clients) },
  { name: "waiting", title: "Waiting", number: true, value: (t) => t.waiting, shown: (t) => count(t.waiting) },
  { name: "queries", title: "Queries/s", number: true, value: (t) => t.queries, shown: (t) => rate(t.queries) },
  { name: "state", title: "", value: (t) => (t.disabled ? "disabled" : t.paused ? "paused" : "") },
], (t) => t.name, "Nobody is here.");
const databases = top("database-table", "Database"), users = top("user-table", "User");

const shownValue = (v: string | null) => (v === null ? "not set" : v === "" ? "empty" : v);
const settingTable = new Table<Setting>("setting-table", [
  { name: "key", title: "Key", value: (s) => s.key },
  { name: "value", title: "Value", value: (s) => s.value, shown: (s) => shownValue(s.value) },
  { name: "default", title: "Default", value: (s) => s.default, shown: (s) => shownValue(s.default) },
  { name: "live", title: "Changed by", few: true, value: (s) => (s.live ? "reload" : "restart") },
], (s) => s.key, "Everything has its default.");

// ---- a report ----

interface Tile { key: string; title: string; value: string; raw: number; more: string; hot?: boolean }
function tiles(r: Report): Tile[] {
  const t = r.totals, wait = r.latency.wait?.minute, q = r.latency.query?.minute;
  return [
    { key: "clients", title: "Clients", value: count(t.clients), raw: t.clients, more: `${counted(t.pools, "pool")}, ${counted(t.databases, "database")}` },
    { key: "cl_waiting", title: "Waiting clients", value: count(t.cl_waiting), raw: t.cl_waiting, hot: t.cl_waiting > 0,
      more: t.cl_waiting ? `the first for ${duration(t.maxwait)}` : "nobody waits" },
    { key: "sv_active", title: "Active servers", value: count(t.sv_active), raw: t.sv_active, more: `${count(t.sv_idle)} idle${t.sv_login ? `, ${count(t.sv_login)} logging in` : ""}` },
    { key: "queries", title: "Queries per second", value: rate(t.queries), raw: t.queries ?? 0, more: `${rate(t.transactions)} transactions` },
    { key: "wait", title: "Wait p99, 1 min", value: duration(wait?.p99), raw: wait?.p99 ?? 0, more: `p50 ${duration(wait?.p50)}` },
    { key: "query", title: "Query p99, 1 min", value: duration(q?.p99), raw: q?.p99 ?? 0, more: `p50 ${duration(q?.p50)}` },
    { key: "traffic", title: "From clients", value: bytes(t.received), raw: t.received ?? 0, more: `${bytes(t.sent)} to them` },
  ];
}

function showFindings(r: Report) {
  const list = r.findings.map((f) => ({ ...f, kind: f.bad ? "bad" : "warn" }));
  if (!list.length)
    list.push({ bad: false, kind: "good", title: "All is well", reason: "No client waits, no host is out, no worker is at its limit." });
  each(by("findings"), list, (f) => `${f.kind}${f.database ?? f.title}\n${f.user ?? ""}`, (f) => {
    const item = make("li", {}, make("b"), make("span"));
    if (f.database !== undefined && f.user !== undefined) {
      const pool = { database: f.database, user: f.user };
      const button = make("button", { type: "button" }, "Show in the charts");
      button.addEventListener("click", () => {
        if (!chosen || poolKey(chosen) !== poolKey(pool)) choose(pool);
        by("charts").scrollIntoView();
      });
      item.append(button);
    }
    return item;
  }, (item, f) => {
    item.className = f.kind;
    text(item.children[0], f.title);
    text(item.children[1], f.reason);
  });
  document.title = (r.totals.cl_waiting ? `(${count(r.totals.cl_waiting)} wait) ` : "") + "pgflotilla";
}

function showWorkers(r: Report) {
  text(by("workers-count"), `${r.workers.length}`);
  each(by("worker-list"), r.workers, (w) => String(w.worker), () => make("li", {},
    make("div", { class: "row" }, make("b"), make("span")), make("div", { class: "load" }, make("span")),
    make("div", { class: "row" }, make("span"), make("span")), make("div", { class: "row" }, make("span"))), (item, w) => {
    item.classList.toggle("busy", w.busy >= 0.9);
    item.dataset.worker = String(w.worker);
    item.dataset.clients = String(w.clients);
    item.dataset.waiting = String(w.waiting);
    const [name, busy, servers, engine, why] = item.querySelectorAll<HTMLElement>(".row > *");
    text(name, `Worker ${w.worker}`);
    text(busy, `${percent(w.busy)} busy`);
    item.querySelector<HTMLElement>(".load span")!.style.transform = `scaleX(${Math.min(1, w.busy)})`;
    text(servers, `${counted(w.clients, "client")}${w.waiting ? `, ${count(w.waiting)} wait` : ""}`);
    text(engine, `${count(w.active)} active, ${count(w.idle)} idle`);
    text(why, w.why ? `last move: ${w.why}` : w.engine);
  });
}

function showSettings() {
  const changed = (s: Setting) => s.value !== s.default;
  const only = by<HTMLInputElement>("changed-only").checked;
  text(by("settings-count"), `${settings.filter(changed).length} of ${settings.length} differ from their default`);
  settingTable.show(only ? settings.filter(changed) : settings, (s) => (changed(s) ? "changed" : ""));
}

function show(r: Report) {
  by("main").hidden = by("jump").hidden = by("hold").hidden = by("state").hidden = false;
  by("login").hidden = by("trouble").hidden = true;
  text(by("state"), r.state);
  by("state").className = `badge ${r.state === "running" ? "good" : r.state === "ending" ? "bad" : "warn"}`;
  text(by("about"), `version ${r.program}, as ${r.version}`);

  showFindings(r);
  each(by("tiles"), tiles(r), (t) => t.key, () => make("div", {}, make("dt"), make("dd"), make("dd")), (tile, t) => {
    tile.className = t.hot ? "hot" : "";
    tile.dataset.tile = t.key;
    tile.dataset.value = String(t.raw);
    text(tile.children[0], t.title);
    text(tile.children[1], t.value);
    text(tile.children[2], t.more);
  });

  text(by("charts-of"), chosen ? `${chosen.database} / ${chosen.user}` : "all pools");
  by("charts-all").hidden = !chosen;
  charts.show(history, chosen && poolKey(chosen));

  const p = r.pools;
  text(by("pools-count"), p.matching === r.totals.pools ? count(p.matching) : `${count(p.matching)} of ${count(r.totals.pools)}`);
  pools.show(p.rows, (row) => (row.cl_waiting ? "hot" : ""));
  by("pager").hidden = p.matching <= p.page;
  text(by("page"), `${count(p.from + 1)}–${count(p.from + p.rows.length)} of ${count(p.matching)}`);
  by<HTMLButtonElement>("prev").disabled = p.from === 0;
  by<HTMLButtonElement>("next").disabled = p.from + p.page >= p.matching;

  showWorkers(r);
  latencies.show(Object.entries(r.latency).map(([what, of]) => [what, of[since] ?? { count: 0 }]));
  slowWaits.show(r.slow_waits, (w) => (w.in_vain ? "hot" : ""));
  text(by("hosts-count"), r.hosts.total > r.hosts.rows.length ? `${r.hosts.rows.length} of ${count(r.hosts.total)}` : `${r.hosts.total}`);
  hosts.show(r.hosts.rows);
  by("peers").hidden = !r.peers.length;
  peers.show(r.peers);
  mostServers = Math.max(1, ...r.databases.map((d) => d.servers), ...r.users.map((u) => u.servers));
  databases.show(r.databases);
  users.show(r.users);
}

// ---- the connection ----

const live = document.querySelector(".live")!;
const stream = new Stream({
  report: (r) => {
    if (r.settings) {
      settings = r.settings;
      showSettings();
    }
    history.add(r);
    last = r;
    if (!frozen) show(r);
  },
  state: (state, why) => {
    live.className = `live ${state === "live" ? "on" : "off"}`;
    text(by("link-text"), frozen ? "frozen" : state === "live" ? "live" : why);
    if (state !== "lost" || last) return;
    by("trouble").hidden = false;
    text(by("trouble"), `No data: ${why}. This page tries again.`);
  },
  refused: (wrong) => {
    for (const id of ["main", "jump", "hold", "state", "trouble"]) by(id).hidden = true;
    by("login").hidden = false;
    text(by("login-error"), wrong ? "That is not the token." : "");
    text(by("link-text"), "no token");
    by("token").focus();
  },
});

function reopen() {
  if (!document.hidden) stream.open(query());
}

by("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", by<HTMLInputElement>("token").value);
  by<HTMLInputElement>("token").value = "";
  reopen();
});
// A link may bring it behind the #, which is not sent to any server; it does not stay in the address.
const fromLink = /^#token=(.+)$/.exec(location.hash);
if (fromLink) {
  sessionStorage.setItem("token", decodeURIComponent(fromLink[1]));
  window.history.replaceState(null, "", location.pathname + location.search);
}
// Who does not look costs nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? stream.close() : reopen()));

// ---- controls ----

by("hold").addEventListener("click", () => {
  frozen = !frozen;
  by("hold").setAttribute("aria-pressed", String(frozen));
  text(by("hold"), frozen ? "Go on" : "Freeze");
  text(by("link-text"), frozen ? "frozen" : "live");
  if (!frozen && last) show(last);
});
let typing = 0;
by("find").addEventListener("input", () => {
  clearTimeout(typing);
  typing = window.setTimeout(() => {
    Object.assign(choice, { find: by<HTMLInputElement>("find").value, from: 0 });
    reopen();
  }, 250);
});
by("choice").addEventListener("submit", (event) => event.preventDefault());
by("order").addEventListener("change", () => {
  Object.assign(choice, { order: by<HTMLSelectElement>("order").value, from: 0 });
  reopen();
});
const turn = (by_: number) => {
  if (!last) return;
  choice.from = Math.max(0, last.pools.from + by_ * last.pools.page);
  reopen();
};
by("prev").addEventListener("click", () => turn(-1));
by("next").addEventListener("click", () => turn(1));
by("charts-all").addEventListener("click", () => choose(undefined));
by("changed-only").addEventListener("change", showSettings);
by("settings-choice").addEventListener("submit", (event) => event.preventDefault());
for (const radio of document.querySelectorAll<HTMLInputElement>("input[name=since]"))
  radio.addEventListener("change", () => {
    since = radio.value as Since;
    if (last) show(last);
  });

reopen();
