// What the Node programs share, as steps.py for the Python ones. README.md says what the steps are.
import { setTimeout as delay } from 'node:timers/promises';

export const CONNECTIONS = 6;
export const SIMPLE = 20;
export const PREPARED = 30;
export const COPIED = 5000;
export const ROWS = 200000;
export const BIG = 8 << 20;
export const [URL_, MODE] = process.argv.slice(2);

export const endless = (n) => `select pg_sleep(600) as endless_${n}`;
export const ACTIVE = "select count(*)::int as count from pg_stat_activity where state = 'active' and query = ";
export const bigText = (n) => (`${n}:` + 'abcdefgh'.repeat(BIG / 8)).slice(0, BIG);
export const copyLines = (n) =>
  Array.from({ length: COPIED }, (_, i) => `${n}\t${i}\tvalue ${i} of ${n}\n`).join('');

export function same(got, wanted) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`got ${a?.slice(0, 200)}, wanted ${b?.slice(0, 200)}`);
}

export async function fails(promise, code) {
  try {
    await promise;
  } catch (e) {
    if (code) same(e.code, code);
    return e;
  }
  throw new Error(`${code ?? 'an error'} did not come`);
}

export async function until(check) {
  while (!(await check())) await delay(10);
}

export async function report(version, steps) {
  console.log('#', version);
  let failed = false;
  for (const step of steps) {
    try {
      await step();
      console.log('ok', step.name);
    } catch (e) {
      failed = true;
      console.log('FAIL', step.name, String(e.stack).replaceAll('\n', ' '));
    }
  }
  process.exit(failed ? 1 : 0);
}
