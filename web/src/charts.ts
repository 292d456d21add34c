// What has been seen since the page was opened, and its charts.
import uPlot from "uplot";
import { by, count, duration, rate } from "./dom";
import type { Pool, Report } from "./report";

const kPoints = 300;      // s
const kPoolsKept = 400;   // whose past is kept: those that have been on a page

type Past = Record<"at" | "active" | "waiting" | "sv_active" | "sv_idle" | "rate" | "p50" | "p99", (number | null)[]>;
const empty = (): Past => ({ at: [], active: [], waiting: [], sv_active: [], sv_idle: [], rate: [], p50: [], p99: [] });
export const poolKey = (p: { database: string; user: string }) => JSON.stringify([p.database, p.user]);

function add(past: Past, point: Record<keyof Past, number | null>) {
  for (const key of Object.keys(past) as (keyof Past)[]) {
    past[key].push(point[key]);
    if (past[key].length > kPoints) past[key].shift();
  }
}

export class History {
  readonly all = empty();
  private readonly pools = new Map<string, Past>();

  add(report: Report) {
    const at = report.at / 1000, t = report.totals, wait = report.latency.query?.second;
    add(this.all, { at, active: t.cl_active, waiting: t.cl_waiting, sv_active: t.sv_active, sv_idle: t.sv_idle,
                    rate: t.queries ?? null, p50: wait?.p50 ?? null, p99: wait?.p99 ?? null });
    const seen = new Set<string>();
    for (const p of report.pools.chosen ? [...report.pools.rows, report.pools.chosen] : report.pools.rows) {
      const key = poolKey(p);
      if (seen.has(key)) continue;
      seen.add(key);
      const past = this.pools.get(key) ?? empty();
      this.pools.delete(key);  // to the end: what has not been seen for longest goes first
      this.pools.set(key, past);
      add(past, { at, active: p.cl_active, waiting: p.cl_waiting, sv_active: p.sv_active, sv_idle: p.sv_idle,
                  rate: p.queries, p50: p.queries ? p.mean_query : null, p99: p.queries ? p.mean_wait : null });
    }
    for (const key of this.pools.keys()) {
      if (this.pools.size <= kPoolsKept) break;
      this.pools.delete(key);
    }
  }

  of(key: string | undefined): Past {
    return (key === undefined ? this.all : this.pools.get(key)) ?? empty();
  }
}

// A line of a pool's clients, for its row.
export function spark(past: Past) {
  const n = 60, from = Math.max(0, past.at.length - n);
  const active = past.active.slice(from) as number[], waiting = past.waiting.slice(from) as number[];
  const top = Math.max(1, ...active, ...waiting);
  const line = (values: number[]) =>
    values.map((v, i) => `${i ? "L" : "M"}${(100 * (i + n - values.length)) / (n - 1)} ${24 - (22 * v) / top}`).join("");
  return { active: line(active), waiting: waiting.some((v) => v > 0) ? line(waiting) : "" };
}

interface Line { key: keyof Past; label: string; color: string; fill?: boolean }
const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Chart {
  private plot: uPlot | undefined;
  private readonly place: HTMLElement;
  constructor(id: string, private lines: Line[], private readonly shown: (n: number) => string, private readonly log = false) {
    this.place = by(id);
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  private size() {
    return { width: Math.max(200, this.place.clientWidth), height: 170 };
  }

  rename(lines: Line[]) {
    this.lines = lines;
    this.rebuild();
  }

  // Colours are read when a chart is made.
  rebuild() {
    this.plot?.destroy();
    this.plot = undefined;
  }

  // The legend has the numbers under the cursor, or else the newest.
  private tellLast() {
    const plot = this.plot;
    if (plot && (plot.cursor.left ?? -1) < 0) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }

  show(past: Past) {
    const data = [past.at, ...this.lines.map((l) => past[l.key])] as uPlot.AlignedData;
    if (this.plot) {
      this.plot.setData(data);
      return this.tellLast();
    }
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
                   font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      ...this.size(),
      cursor: { y: false, drag: { x: false, y: false } },
      scales: {
        x: { range: (_u, min, max) => [Math.min(min, max - 60), max] },
        y: this.log ? { distr: 3, range: (_u, min, max) => logRange(min, max) }
                    : { range: (_u, _min, max) => [0, Math.max(max * 1.1, 4)] },
      },
      axes: [
        { ...axis, size: 28, space: 70,
          values: (_u, at) => at.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")) },
        { ...axis, size: 62, space: 34, grid: this.log ? { ...axis.grid, filter: decades } : axis.grid,
          values: (_u, at) => at.map((n) => (n === null || (!this.log && n % 1) ? "" : this.shown(n))) },
      ],
      series: [
        { label: "Time", value: (_u, t) => (t === null ? "–" : new Date(t * 1000).toLocaleTimeString("en-GB")) },
        ...this.lines.map((l): uPlot.Series => ({
          label: l.label, stroke: color(l.color), width: 2, points: { show: false }, spanGaps: false,
          fill: l.fill ? color(l.color) + "22" : undefined,
          value: (_u, v) => (v === null || v === undefined ? "–" : this.shown(v)),
        })),
      ],
      legend: { live: true },
      hooks: { setCursor: [() => this.tellLast()] },
    }, data, this.place);
    this.tellLast();
  }
}

const decades = (_u: uPlot, splits: number[]) =>
  splits.map((n) => (Math.abs(Math.log10(n) - Math.round(Math.log10(n))) < 1e-6 ? n : null));

function logRange(min: number | null, max: number | null): [number, number] {
  return [10 ** Math.floor(Math.log10(Math.max(1, min ?? 1))), 10 ** Math.ceil(Math.log10(Math.max(10, (max ?? 10) * 1.01)))];
}

export class Charts {
  private readonly clients = new Chart("chart-clients", [
    { key: "active", label: "active", color: "--active", fill: true },
    { key: "waiting", label: "waiting", color: "--waiting", fill: true }], count);
  private readonly servers = new Chart("chart-servers", [
    { key: "sv_active", label: "active", color: "--active", fill: true },
    { key: "sv_idle", label: "idle", color: "--idle" }], count);
  private readonly rate = new Chart("chart-rate", [{ key: "rate", label: "queries", color: "--p50", fill: true }], rate);
  private readonly latency = new Chart("chart-latency", [], duration, true);
  private ofPool: boolean | undefined;

  constructor() {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of [this.clients, this.servers, this.rate, this.latency]) chart.rebuild();
    });
  }

  show(history: History, key: string | undefined) {
    const ofPool = key !== undefined;
    if (ofPool !== this.ofPool) {
      this.ofPool = ofPool;
      this.latency.rename([{ key: "p50", label: ofPool ? "query" : "p50", color: "--p50" },
                           { key: "p99", label: ofPool ? "wait" : "p99", color: "--p99" }]);
      by("chart-latency-h").textContent =
        ofPool ? "Mean time of a query, and of a wait for a server" : "Query time, each second";
    }
    const past = history.of(key);
    for (const chart of [this.clients, this.servers, this.rate, this.latency]) chart.show(past);
  }
}

export type { Pool };
