<?php
// PHP's pgsql extension, see README.md. One thread: all connections are sent to, then all are read from.
declare(strict_types=1);
ini_set('memory_limit', '512M');
set_error_handler(function (int $level, string $text): bool {
    global $warning;  // the extension warns about each error; we look at results
    $warning = $text;
    return true;
});

const CONNECTIONS = 6, SIMPLE = 20, PREPARED = 30, COPIED = 5000, ROWS = 200000, BIG = 8 << 20;
[, $url, $mode] = $argv;

function same(mixed $got, mixed $wanted): void {
    if ($got !== $wanted)
        throw new Exception('got ' . substr(json_encode($got), 0, 200) . ', wanted ' . substr(json_encode($wanted), 0, 200));
}

/** The next result, and that none comes after it. */
function result(PgSql\Connection $c): PgSql\Result {
    $r = pg_get_result($c);
    if (!$r) throw new Exception('no result: ' . pg_last_error($c));
    same(pg_get_result($c), false);
    return $r;
}

function rows(PgSql\Connection $c): array {
    $r = result($c);
    if (pg_result_status($r) !== PGSQL_TUPLES_OK) throw new Exception(pg_result_error($r));
    return pg_fetch_all($r, PGSQL_NUM);
}

function ask(PgSql\Connection $c, string $sql, array $values = []): array {
    same(pg_send_query_params($c, $sql, $values), true);
    return rows($c);
}

function run(PgSql\Connection $c, string $sql, ?string $sqlstate = null): void {
    same(pg_send_query($c, $sql), true);
    $code = pg_result_error_field(result($c), PGSQL_DIAG_SQLSTATE);
    same($code ?: null, $sqlstate);
}

function simple(array $cs): void {
    for ($i = 0; $i < SIMPLE; $i++) {
        foreach ($cs as $n => $c) same(pg_send_query($c, "select $n, $i, 'simple $n'"), true);
        foreach ($cs as $n => $c) same(rows($c), [["$n", "$i", "simple $n"]]);
    }
}

function prepared(array $cs): void {
    $shared = 'select $1::int + $2::int, $3::text, '
        . "exists (select from pg_prepared_statements where strpos(statement, 'shared by all') > 0)";
    foreach ($cs as $n => $c) {
        same(pg_prepare($c, 'shared', $shared) !== false, true);
        same(pg_prepare($c, 'own', "select $n, \$1::int, \$2::text") !== false, true);
    }
    for ($i = 0; $i < PREPARED; $i++) {
        foreach ($cs as $n => $c) same(pg_send_execute($c, 'shared', [$n, $i, "text $n"]), true);
        foreach ($cs as $n => $c) same(rows($c), [[(string)($n + $i), "text $n", 't']]);
        foreach ($cs as $n => $c) same(pg_send_execute($c, 'own', [$i, "own $n"]), true);
        foreach ($cs as $n => $c) same(rows($c), [["$n", "$i", "own $n"]]);
        foreach ($cs as $n => $c) same(ask($c, "select \$1::int * $n", [$i]), [[(string)($i * $n)]]);
    }
}

function transaction(array $cs): void {
    global $mode;
    for ($n = 0; $n < CONNECTIONS; $n += 2) {  // at most three are in a transaction at a time
        [$a, $b] = [$cs[$n], $cs[$n + 1]];
        if ($mode === 'statement') {
            pg_query($a, 'begin');
            same(pg_query($a, 'select 1'), false);
            same(pg_connection_status($a), PGSQL_CONNECTION_BAD);
            same(ask($b, 'select $1::int', [$n]), [["$n"]]);
            continue;
        }
        run($a, 'begin');
        run($b, 'begin');
        run($a, "insert into item values ($n, 1, 'lost')");
        run($b, "insert into item values ($n + 1, 2, 'kept $n')");
        run($a, 'select 1 / 0', '22012');
        run($a, 'select 1', '25P02');
        run($b, 'commit');
        run($a, 'rollback');
        same(ask($b, 'select count(*) from item where conn = $1', [$n]), [['0']]);
        same(ask($a, 'select v from item where conn = $1', [$n + 1]), [["kept $n"]]);
    }
}


function copying(array $cs): void {
    foreach ($cs as $n => $c) {
        $lines = [];
        for ($i = 0; $i < COPIED; $i++) $lines[] = "$n\t$i\tvalue $i of $n\n";
        same(pg_copy_from($c, 'bulk', $lines), true);
        same(pg_copy_to($c, "(select * from bulk where conn = $n order by i)"), $lines);
        same(pg_copy_from($c, 'bulk', ["no number\t1\tx\n"]), false);
        same(str_contains(pg_last_error($c), 'invalid input syntax for type integer'), true);
        same(ask($c, 'select $1::int', [$n]), [["$n"]]);
    }
}

function endless(int $n): string {
    return "select pg_sleep(600) as endless_$n";
}

function active(PgSql\Connection $watcher, int $n): bool {
    return ask($watcher, "select count(*) from pg_stat_activity where state = 'active' and query = $1", [endless($n)])
        === [['1']];
}

function cancel(array $cs): void {
    [$watcher, $sleepers] = [$cs[2], [$cs[0], $cs[1]]];
    foreach ($sleepers as $n => $c) same(pg_send_query($c, endless($n)), true);
    while (!active($watcher, 0) || !active($watcher, 1)) usleep(10000);
    foreach ($sleepers as $n => $c) {
        same(pg_cancel_query($c), true);  // waits for the answer, and throws it away
        same(ask($c, 'select $1::text', ["alive $n"]), [["alive $n"]]);
        same([active($watcher, 0), active($watcher, 1)], [false, $n === 0]);
    }
}

function big(array $cs): void {
    same(pg_send_query($cs[0], 'select i from generate_series(1, ' . ROWS . ') i'), true);
    $text = substr(str_repeat('abcdefgh', BIG >> 3), 0, BIG);
    same(pg_send_query_params($cs[1], 'select $1::text', [$text]), true);
    $r = result($cs[0]);
    same(pg_num_rows($r), ROWS);
    for ($i = 0; $i < ROWS; $i++)
        if (pg_fetch_result($r, $i, 0) !== (string)($i + 1)) throw new Exception("row $i");
    same(rows($cs[1])[0][0] === $text, true);
    foreach ($cs as $n => $c) same(ask($c, 'select $1::int', [$n]), [["$n"]]);
}

echo '# PHP ', PHP_VERSION, ' pgsql, libpq ', PGSQL_LIBPQ_VERSION, "\n";
$failed = false;
foreach (['simple', 'prepared', 'transaction', 'copy' => 'copying', 'cancel', 'big'] as $name => $step) {
    $name = is_string($name) ? $name : $step;
    $cs = [];
    try {
        for ($n = 0; $n < CONNECTIONS; $n++) {
            $cs[] = pg_connect($url, PGSQL_CONNECT_FORCE_NEW) ?: throw new Exception("connect: $warning");
        }
        $step($cs);
        echo "ok $name\n";
    } catch (Throwable $e) {
        $failed = true;
        echo "FAIL $name ", str_replace("\n", ' ', $e->getMessage() . " line " . $e->getTrace()[0]['line']), "\n";
    }
    foreach ($cs as $c) pg_close($c);
}
exit($failed ? 1 : 0);
