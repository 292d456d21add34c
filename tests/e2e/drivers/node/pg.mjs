// node-postgres, see ../README.md.
import { readFileSync } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { Readable } from 'node:stream';
import pg from 'pg';
import { from, to } from 'pg-copy-streams';
import {
  ACTIVE, CONNECTIONS, MODE, PREPARED, ROWS, SIMPLE, URL_, bigText, copyLines, endless, fails, report, same, until,
} from './steps.mjs';

const SHARED = `select $1::int + $2::int as a, $3::text as b,
  exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0) as c`;

async function withConnections(work, count = CONNECTIONS) {
  const cs = [];
  try {
    for (let n = 0; n < count; n++) {
      const c = new pg.Client({ connectionString: URL_ });
      c.on('error', () => {}); // a lost connection is also an error of its query
      await c.connect();
      cs.push(c);
    }
    await work(cs);
  } finally {
    for (const c of cs) await c.end();
  }
}

const together = (cs, work) => Promise.all(cs.map((c, n) => work(n, c)));
const rows = async (c, query, values) => (await c.query({ text: query, values, rowMode: 'array' })).rows;

function simple() {
  return withConnections((cs) => together(cs, async (n, c) => {
    for (let i = 0; i < SIMPLE; i++)
      same(await rows(c, `select ${n}, ${i}, 'simple ${n}'`), [[n, i, `simple ${n}`]]);
  }));
}

function prepared() {
  return withConnections((cs) => together(cs, async (n, c) => {
    for (let i = 0; i < PREPARED; i++) {
      const shared = await c.query({ name: 'shared', text: SHARED, values: [n, i, `text ${n}`] });
      same(shared.rows, [{ a: n + i, b: `text ${n}`, c: true }]);
      const own = { name: 'own', text: `select ${n} as n, $1::int as i, $2::text as t`, values: [i, `own ${n}`] };
      same((await c.query(own)).rows, [{ n, i, t: `own ${n}` }]);
      same(await rows(c, `select $1::int * ${n}`, [i]), [[i * n]]); // unnamed
    }
  }));
}

function transaction() {
  return withConnections((cs) => together(cs, async (n, c) => {
    if (MODE === 'statement') {
      if (n % 2) await fails(c.query('begin').then(() => c.query('select 1')));
      else for (let i = 0; i < SIMPLE; i++) same(await rows(c, 'select $1::int, $2::int', [n, i]), [[n, i]]);
      return;
    }
    await c.query('begin');
    await c.query("insert into item values ($1, 1, 'lost')", [n]);
    await fails(c.query('select 1 / $1::int', [0]), '22012');
    await fails(c.query('select 1'), '25P02');
    await c.query('rollback');
    same(await rows(c, 'select count(*)::int from item where conn = $1', [n]), [[0]]);
    await c.query('begin');
    await c.query({ name: 'insert', text: 'insert into item values ($1, 2, $2)', values: [n, `kept ${n}`] });
    await c.query('commit');
    same(await rows(c, 'select v from item where conn = $1', [n]), [[`kept ${n}`]]);
  }));
}

function copy() {
  return withConnections((cs) => together(cs, async (n, c) => {
    const lines = copyLines(n);
    await pipeline(Readable.from([lines]), c.query(from('copy bulk from stdin')));
    const pieces = [];
    for await (const piece of c.query(to(`copy (select * from bulk where conn = ${n} order by i) to stdout`)))
      pieces.push(piece);
    same(Buffer.concat(pieces).toString() === lines, true);
    await fails(pipeline(Readable.from(['no number\t1\tx\n']), c.query(from('copy bulk from stdin'))), '22P02');
    same(await rows(c, 'select $1::int', [n]), [[n]]);
  }));
}

function cancel() {
  return withConnections(async ([watcher, ...sleepers]) => {
    const active = async (n) => (await watcher.query(ACTIVE + '$1', [endless(n)])).rows[0].count === 1;
    let done = 0;
    const queries = sleepers.map((c, n) => new pg.Query(endless(n)));
    const ends = queries.map((query, n) => new Promise((resolve, reject) => {
      query.on('end', resolve);
      query.on('error', (e) => { done++; reject(e); });
      sleepers[n].query(query);
    }));
    await until(async () => (await active(0)) && (await active(1)));
    for (const n of [0, 1]) {
      new pg.Client({ connectionString: URL_ }).cancel(sleepers[n], queries[n]);
      await fails(ends[n], '57014');
      same(await rows(sleepers[n], `select 'alive ${n}'`), [[`alive ${n}`]]);
      same([done, await active(1)], [n + 1, n === 0]);
    }
  }, 3);
}

function big() {
  return withConnections((cs) => together(cs, async (n, c) => {
    if (n === 0) {
      const got = await rows(c, `select i from generate_series(1, ${ROWS}) i`);
      same([got.length, got.every(([v], i) => v === i + 1)], [ROWS, true]);
    } else {
      const text = bigText(n);
      same((await rows(c, 'select $1::text', [text]))[0][0] === text, true);
    }
    same(await rows(c, 'select $1::int', [n]), [[n]]);
  }), 3);
}

const version = JSON.parse(readFileSync(new URL('./node_modules/pg/package.json', import.meta.url))).version;
await report(`node-postgres ${version}, node ${process.versions.node}`,
  [simple, prepared, transaction, copy, cancel, big]);
