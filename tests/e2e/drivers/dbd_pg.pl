# DBD::Pg, see README.md. One thread: all connections are asked (pg_async), then all answers are read.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);

my ($url, $mode) = @ARGV;
my ($CONNECTIONS, $SIMPLE, $PREPARED, $COPIED, $ROWS, $BIG) = (6, 20, 30, 5000, 200_000, 8 << 20);
$| = 1;

sub same {
    my ($got, $wanted) = map { ref $_ ? join('|', map { $_ // 'null' } map { ref $_ ? @$_ : $_ } @$_) : $_ // 'null' } @_;
    die sprintf("got %.200s, wanted %.200s (line %d)\n", $got, $wanted, (caller)[2]) if $got ne $wanted;
}

sub fails {
    my ($sqlstate, $work) = @_;
    return same($DBI::state, $sqlstate) unless eval { $work->(); 1 };
    die "$sqlstate did not come (line " . (caller)[2] . ")\n";
}

sub open_all {
    my ($user, $host, $port, $db) = $url =~ m{^postgresql://(\w+)@([\w.]+):(\d+)/(\w+)\?sslmode=disable$} or die $url;
    return map { DBI->connect("dbi:Pg:host=$host;port=$port;dbname=$db;sslmode=disable", $user, '',
        { AutoCommit => 1, RaiseError => 1, PrintError => 0, PrintWarn => 0 }) } 1 .. $CONNECTIONS;
}

sub simple {
    my @c = @_;
    for my $i (1 .. $SIMPLE) {  # pg_server_prepare off and no placeholders: a simple query
        my @s = map { $c[$_]->prepare("select $_, $i, 'simple $_'", { pg_async => PG_ASYNC, pg_server_prepare => 0 }) } 0 .. $#c;
        $_->execute for @s;
        for my $n (0 .. $#c) {
            $c[$n]->pg_result;
            same($s[$n]->fetchall_arrayref, [[$n, $i, "simple $n"]]);
        }
    }
}

# When a statement ends, DBD::Pg 3.16 says DEALLOCATE in SQL, with a name that only the pooler knows. In transaction and
# statement mode that gets an error, which DBD::Pg only warns about (docs/compat.md).
sub prepared {
    my @c = @_;
    my (@shared, @own);
    for my $n (0 .. $#c) {
        push @shared, $c[$n]->prepare('select $1::int + $2::int, $3::text, exists (select from pg_prepared_statements '
            . q{where strpos(statement, 'shared by all') > 0)}, { pg_async => PG_ASYNC, pg_prepare_now => 1 });
        push @own, $c[$n]->prepare("select $n, ?::int, ?::text");  # named from the second execution on
    }
    for my $i (1 .. $PREPARED) {
        $shared[$_]->execute($_, $i, "text $_") for 0 .. $#c;
        for my $n (0 .. $#c) {
            $c[$n]->pg_result;
            my ($sum, $text, $named) = $shared[$n]->fetchrow_array;
            same([$sum, $text], [$n + $i, "text $n"]);
            same($named, 1) if $i > 10;
            $own[$n]->execute($i, "own $n");
            same($own[$n]->fetchall_arrayref, [[$n, $i, "own $n"]]);
        }
    }
}

sub transaction {
    my @c = @_;
    for (my $n = 0; $n < @c; $n += 2) {  # at most three are in a transaction at a time
        my ($a, $b) = @c[$n, $n + 1];
        if ($mode eq 'statement') {
            die "BEGIN was not refused\n" if eval { $a->begin_work; $a->do('select 1'); 1 };
            same($a->ping ? 'alive' : 'gone', 'gone');
            same([$b->selectrow_array('select ?::int', undef, $n)], [$n]);
            next;
        }
        $_->begin_work for $a, $b;
        $a->do("insert into item values (?, 1, 'lost')", undef, $n);
        $b->do('insert into item values (?, 2, ?)', undef, $n + 1, "kept $n");
        fails('22012', sub { $a->do('select 1 / ?::int', undef, 0) });
        fails('25P02', sub { $a->do('select 1') });
        $b->commit;
        $a->rollback;
        same([$b->selectrow_array('select count(*) from item where conn = ?', undef, $n)], [0]);
        same([$a->selectrow_array('select v from item where conn = ?', undef, $n + 1)], ["kept $n"]);
    }
}

sub copy {
    my @c = @_;
    for my $n (0 .. $#c) {
        my @lines = map { "$n\t$_\tvalue $_ of $n\n" } 0 .. $COPIED - 1;
        $c[$n]->do('copy bulk from stdin');
        $c[$n]->pg_putcopydata($_) for @lines;
        $c[$n]->pg_putcopyend;
        $c[$n]->do("copy (select * from bulk where conn = $n order by i) to stdout");
        my ($back, $line) = ('', '');
        $back .= $line while $c[$n]->pg_getcopydata($line) >= 0;
        same($back eq join('', @lines) ? 'same' : 'not', 'same');
        $c[$n]->do('copy bulk from stdin');
        $c[$n]->pg_putcopydata("no number\t1\tx\n");
        fails('22P02', sub { $c[$n]->pg_putcopyend });
        same([$c[$n]->selectrow_array('select ?::int', undef, $n)], [$n]);
    }
}

sub endless { "select pg_sleep(600) as endless_$_[0]" }

sub active {
    my ($watcher, $n) = @_;
    my ($count) = $watcher->selectrow_array(q{select count(*) from pg_stat_activity where state = 'active' and query = ?},
        undef, endless($n));
    return $count;
}

sub cancel {
    my ($first, $second, $watcher) = @_;
    my @sleepers = ($first, $second);
    $sleepers[$_]->do(endless($_), { pg_async => PG_ASYNC }) for 0, 1;
    select undef, undef, undef, 0.01 until active($watcher, 0) && active($watcher, 1);
    for my $n (0, 1) {
        same($sleepers[$n]->pg_cancel ? 'canceled' : 'not', 'canceled');  # it has seen 57014
        same([$sleepers[$n]->selectrow_array('select ?::text', undef, "alive $n")], ["alive $n"]);
        same([active($watcher, 0), active($watcher, 1)], [0, 1 - $n]);
    }
}

sub big {
    my @c = @_;
    my $rows = $c[0]->prepare("select i from generate_series(1, $ROWS) i", { pg_async => PG_ASYNC });
    my $value = $c[1]->prepare('select ?::text', { pg_async => PG_ASYNC });
    my $text = 'abcdefgh' x ($BIG / 8);
    $rows->execute;
    $value->execute($text);
    $_->pg_result for @c[0, 1];
    my $next = 1;
    while (my $row = $rows->fetchrow_arrayref) {
        die "row $next is $row->[0]\n" if $row->[0] != $next++;
    }
    same($next, $ROWS + 1);
    same(($value->fetchrow_array)[0] eq $text ? 'same' : 'not', 'same');
    same([$c[$_]->selectrow_array('select ?::int', undef, $_)], [$_]) for 0 .. $#c;
}

print "# DBD::Pg $DBD::Pg::VERSION, DBI $DBI::VERSION, Perl ", sprintf('%vd', $^V), "\n";
my $failed = 0;
for my $step ([simple => \&simple], [prepared => \&prepared], [transaction => \&transaction], [copy => \&copy],
              [cancel => \&cancel], [big => \&big]) {
    my ($name, $work) = @$step;
    my @c = eval { open_all() };
    if (@c && eval { $work->(@c); 1 }) {
        print "ok $name\n";
    } else {
        print "FAIL $name ", $@ =~ s/\n/ /gr, "\n";
        $failed = 1;
    }
    eval { $_->disconnect } for @c;
}
exit $failed;
