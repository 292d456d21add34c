// postgres.js, see ../README.md. It prepares every query with a name, and pipelines those that are asked at once.
import { readFileSync } from 'node:fs';
import { pipeline as stream } from 'node:stream/promises';
import { Readable } from 'node:stream';
import postgres from 'postgres';
import {
  ACTIVE, CONNECTIONS, COPIED, MODE, PREPARED, ROWS, SIMPLE, URL_, bigText, copyLines, endless, fails, report, same, until,
} from './steps.mjs';

async function withConnections(work, count = CONNECTIONS) {
  // postgres() is a pool: with max 1 it is one connection.
  const cs = Array.from({ length: count }, () => postgres(URL_, { max: 1, onnotice: () => {} }));
  try {
    for (const sql of cs) await sql`select 1`; // it connects late
    await work(cs);
  } finally {
    await Promise.all(cs.map((sql) => sql.end({ timeout: 0 }))); // a lost one would be waited for
  }
}

const together = (cs, work) => Promise.all(cs.map((sql, n) => work(n, sql)));

function simple() {
  return withConnections((cs) => together(cs, async (n, sql) => {
    for (let i = 0; i < SIMPLE; i++)
      same(await sql`select ${sql.unsafe(`${n}`)} as n`.simple(), [{ n }]);
    const several = await sql.unsafe(`select ${n} as a; select 'simple ${n}' as b`);
    same(several, [[{ a: n }], [{ b: `simple ${n}` }]]);
  }));
}

function prepared() {
  return withConnections((cs) => together(cs, async (n, sql) => {
    for (let i = 0; i < PREPARED; i++) {
      same(await sql`select ${n}::int + ${i}::int as a, ${`text ${n}`}::text as b,
        exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0) as c`,
      [{ a: n + i, b: `text ${n}`, c: true }]);
      const own = sql.unsafe(`select ${n} as n, $1::int as i, $2::text as t`, [i, `own ${n}`], { prepare: true });
      same(await own, [{ n, i, t: `own ${n}` }]);
    }
    // At once, in one pipeline.
    const many = await Promise.all(Array.from({ length: PREPARED }, (_, i) => sql`select ${n}::int * 1000 + ${i}::int as x`));
    same(many.map(([row]) => row.x), Array.from({ length: PREPARED }, (_, i) => n * 1000 + i));
  }));
}

function transaction() {
  return withConnections((cs) => together(cs, async (n, sql) => {
    if (MODE === 'statement') {
      if (n % 2) await fails(sql.begin((tx) => tx`select 1`));
      else for (let i = 0; i < SIMPLE; i++) same(await sql`select ${n}::int as n, ${i}::int as i`, [{ n, i }]);
      return;
    }
    await fails(sql.begin(async (tx) => {
      await tx`insert into item values (${n}, 1, 'lost')`;
      await fails(tx`select 1 / ${0}::int`, '22012');
      await fails(tx`select 1`, '25P02');
    }), '22012'); // the first error is the transaction's, caught or not
    same(await sql`select count(*)::int as count from item where conn = ${n}`, [{ count: 0 }]);
    await sql.begin((tx) => [tx`insert into item values (${n}, 2, ${`kept ${n}`})`, tx`select ${n}::int`]); // pipelined
    same(await sql`select v from item where conn = ${n}`, [{ v: `kept ${n}` }]);
  }));
}

function copy() {
  return withConnections((cs) => together(cs, async (n, sql) => {
    const lines = copyLines(n);
    await stream(Readable.from([lines]), await sql`copy bulk from stdin`.writable());
    // Less than 16 kB at a time: beyond that postgres.js 3.4 may forget to read its socket again, without a pooler, too.
    let back = '';
    for (let i = 0; i < COPIED; i += 500)
      for await (const piece of await sql.unsafe(`copy (select * from bulk where conn = ${n} and i >= ${i}
          and i < ${i + 500} order by i) to stdout`).readable())
        back += piece;
    same(back === lines, true);
    await fails(sql`copy bulk from stdin`.writable().then((to) => stream(Readable.from(['no number\t1\tx\n']), to)), '22P02');
    same(await sql`select ${n}::int as n`, [{ n }]);
  }));
}

function cancel() {
  return withConnections(async ([watcher, ...sleepers]) => {
    const active = async (n) => (await watcher.unsafe(ACTIVE + '$1', [endless(n)]))[0].count === 1;
    let done = 0;
    const queries = sleepers.map((sql, n) => sql.unsafe(endless(n)));
    const ends = queries.map((query) => query.finally(() => done++));
    ends.forEach((end) => end.catch(() => {})); // they are looked at below
    await until(async () => (await active(0)) && (await active(1)));
    for (const n of [0, 1]) {
      queries[n].cancel();
      await fails(ends[n], '57014');
      same(await sleepers[n].unsafe(`select 'alive ${n}' as v`), [{ v: `alive ${n}` }]);
      same([done, await active(1)], [n + 1, n === 0]);
    }
  }, 3);
}

function big() {
  return withConnections((cs) => together(cs, async (n, sql) => {
    if (n === 0) {
      const got = await sql`select i from generate_series(1, ${ROWS}::int) i`.values();
      same([got.length, got.every(([v], i) => v === i + 1)], [ROWS, true]);
      let next = 1; // in portions: Execute with a row limit, Flush
      if (MODE !== 'statement')
        for await (const rows of sql`select i from generate_series(1, 10000) i`.cursor(1000))
          for (const { i } of rows) same(i, next++);
    } else {
      const text = bigText(n);
      const [{ v }] = await sql`select ${text}::text as v`;
      same(v === text, true);
    }
    same(await sql`select ${n}::int as n`, [{ n }]);
  }), 3);
}

const version = JSON.parse(readFileSync(new URL('./node_modules/postgres/package.json', import.meta.url))).version;
await report(`postgres.js ${version}, node ${process.versions.node}`,
  [simple, prepared, transaction, copy, cancel, big]);
