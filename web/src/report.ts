// What /events says each second (src/observe/glance.cc). Times in µs, rates per second.
export interface Percentiles { count: number; p50?: number; p90?: number; p99?: number; p999?: number; max?: number }
export interface Pool {
  database: string; user: string; mode: string; size: number;
  cl_active: number; cl_waiting: number; maxwait: number;
  sv_active: number; sv_idle: number; sv_login: number; servers: number;
  queries: number; transactions: number; mean_wait: number; mean_query: number;
  xact_count: number; query_count: number; wait: Percentiles; query: Percentiles;
}
export interface Worker {
  worker: number; engine: string; clients: number; waiting: number; active: number; idle: number; busy: number;
  transactions: number; cpu: number; why: string;
}
export interface Host {
  database: string; host: string; port: number; address: string; role: string; state: string; weight: number;
  open: number; active: number; failures: number; last_error: string; since: number; latency: number;
  minute?: Percentiles;
}
export interface Peer {
  peer: number; host: string; port: number; sent: number; waiting: number; connections: number; connecting: number;
}
export interface SlowWait {
  ended: number; waited: number; in_vain: boolean; database: string; user: string; servers: number; size: number;
  client: number; addr: string; port: number; application_name: string; worker: number;
}
export interface Top {
  name: string; clients: number; max_clients: number; servers: number; max_servers: number; queries: number;
  waiting: number; paused?: boolean; disabled?: boolean;
}
export interface Finding { bad: boolean; title: string; reason: string; database?: string; user?: string }
export interface Setting { key: string; live: boolean; value: string | null; default: string | null }
export type Since = "minute" | "start";
export interface Report {
  at: number; program: string; version: string; state: "running" | "paused" | "suspended" | "ending";
  totals: {
    clients: number; cl_active: number; cl_waiting: number; sv_active: number; sv_idle: number; sv_login: number;
    maxwait: number; databases: number; users: number; pools: number;
    transactions?: number; queries?: number; received?: number; sent?: number;
  };
  findings: Finding[]; workers: Worker[];
  latency: Record<string, { second?: Percentiles; minute?: Percentiles; start: Percentiles }>;
  pools: { matching: number; from: number; page: number; rows: Pool[]; chosen?: Pool };
  databases: Top[]; users: Top[]; hosts: { total: number; rows: Host[] }; peers: Peer[]; slow_waits: SlowWait[];
  settings?: Setting[];
}
