"""What is PostgreSQL's own about a catalog there: beginning, versions, connections, and what goes wrong."""

from __future__ import annotations

import gc
import os
import random
import threading
from contextlib import closing

import psycopg
import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, IntegrityError, LockedError, StorageError
from holdfast.model.ids import Hash, WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import MIGRATIONS
from holdfast.store.objects.remote_store import open_bucket
from holdfast.store.postgresql._transaction import PostgresTransaction
from holdfast.store.postgresql.database import server_info
from holdfast.store.store import Store
from holdfast.testing.dict_saver import Saver

from ....postgresql_server import open_catalog
from ....proxies import Proxy
from ....sampling import some
from ....tls import Front, make_certificate


@pytest.fixture
def empty_url(postgresql_server):
    """A database with nothing in it."""
    name = postgresql_server.new_database()
    yield postgresql_server.url(name)
    postgresql_server.drop_database(name)


@pytest.fixture
def proxy(postgresql_server, catalog_url):
    found = Proxy(postgresql_server.folder, catalog_url.partition("@/")[2].partition("?")[0])
    yield found
    found.close()


def execute(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def told(error):
    """All that an error and what led to it say."""
    said = []
    while error is not None:
        said += [str(error), repr(error), getattr(error, "hint", None) or ""]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


# --- beginning, and versions ---


def test_a_catalog_keeps_to_a_schema_of_its_own(empty_url):
    execute(empty_url, "CREATE TABLE public.blobs (theirs int)")
    open_catalog(empty_url).close()
    assert execute(empty_url, "SELECT application, version FROM holdfast.catalog_state") == [
        (0x48464354, len(MIGRATIONS))
    ]
    assert execute(empty_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]
    columns = execute(
        empty_url,
        "SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = 'holdfast' ORDER BY 1",
    )
    assert {kind for (kind,) in columns} == {"bigint", "bytea", "text", "timestamp with time zone"}
    loose = execute(
        empty_url,
        """SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = 'holdfast' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'""",
    )
    assert loose == [], "every text is ordered byte by byte"


@pytest.mark.parametrize("_", some(range(20), 3))
def test_several_that_begin_at_once_make_one(empty_url, _):
    failed: list[BaseException] = []

    def begin():
        try:
            open_catalog(empty_url).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert execute(empty_url, "SELECT version FROM holdfast.catalog_state") == [(len(MIGRATIONS),)]


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_an_older_version_is_brought_forward(empty_url, version):
    open_catalog(empty_url, migrations=MIGRATIONS[:version]).close()
    found = open_catalog(empty_url)
    with found.reading() as transaction:
        assert transaction.all("SELECT machine FROM workspaces") == []
    found.close()


def test_a_newer_version_is_refused_also_while_it_is_open(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        execute(catalog_url, "UPDATE holdfast.catalog_state SET version = version + 1")
        with pytest.raises(FormatError) as refused, database.writing():
            pass
        assert "newer" in (refused.value.hint or "")
        with pytest.raises(FormatError):
            open_catalog(catalog_url)


@pytest.mark.parametrize(
    "there",
    ["CREATE TABLE holdfast.theirs (a int)", "CREATE TABLE holdfast.catalog_state (application int, version int)"],
)
def test_a_schema_of_another_program_is_left_alone(empty_url, there):
    execute(empty_url, "CREATE SCHEMA holdfast")
    execute(empty_url, there)
    before = execute(empty_url, "SELECT relname FROM pg_class ORDER BY 1")
    with pytest.raises(FormatError) as refused:
        open_catalog(empty_url)
    assert "another program" in refused.value.message
    assert execute(empty_url, "SELECT relname FROM pg_class ORDER BY 1") == before


def test_a_step_to_a_newer_version_that_fails_changes_nothing(empty_url):
    def broken(session):
        session.run("CREATE TABLE half (a INTEGER)")
        raise OSError("in the middle")

    with pytest.raises(OSError, match="middle"):
        open_catalog(empty_url, migrations=(*MIGRATIONS, broken))
    assert execute(empty_url, "SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []
    open_catalog(empty_url).close()


def test_a_user_that_may_not_make_the_schema_is_told_so(empty_url):
    execute(empty_url, "DROP ROLE IF EXISTS poor")
    execute(empty_url, "CREATE ROLE poor LOGIN PASSWORD 's3cret'")
    with pytest.raises(StorageError) as denied:
        open_catalog(empty_url.replace("postgres@", "poor:s3cret@"))
    assert "permission denied" in denied.value.message
    assert "s3cret" not in told(denied.value)


# --- who may write ---


def test_what_may_not_write_the_home_may_not_write_the_catalog(catalog_url):
    with closing(open_catalog(catalog_url, closed=True)) as database:
        assert database.read_only
        with database.reading() as transaction:
            assert transaction.all("SELECT * FROM tenants") == []
        with pytest.raises(StorageError) as refused, database.writing():
            pass
        assert refused.value.code == "read_only"


def test_a_standby_is_only_read(catalog_url, postgresql_server):
    name = catalog_url.partition("@/")[2].partition("?")[0]
    postgresql_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with closing(open_catalog(catalog_url)) as database:
        assert database.read_only
        with pytest.raises(StorageError) as refused, database.writing():
            pass
        assert refused.value.code == "read_only"


def test_a_reading_transaction_cannot_write(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        with pytest.raises(StorageError), database.reading() as transaction:
            transaction.run("INSERT INTO tenants (name, swept, latest) VALUES ('x', 0, 0)")
        with database.reading() as transaction:
            assert transaction.all("SELECT name FROM tenants") == []


# --- connections ---


def test_tenants_do_not_wait_for_each_other(catalog_url):
    one, two = open_catalog(catalog_url, "one", timeout=5), open_catalog(catalog_url, "two", timeout=5)
    with one.writing() as mine, two.writing() as theirs:
        for transaction, name in ((mine, "one"), (theirs, "two")):
            transaction.run("INSERT INTO tenants (name, swept, latest) VALUES (?, 0, 0)", (name,))
    with one.reading() as transaction:
        assert transaction.all("SELECT name FROM tenants ORDER BY 1") == [("one",), ("two",)]
    one.close()
    two.close()


def test_there_are_no_more_connections_than_allowed(catalog_url):
    with closing(open_catalog(catalog_url, connections=2, timeout=0.3)) as database:
        inside, leave = threading.Barrier(3), threading.Event()

        def stay():
            with database.reading() as transaction:
                transaction.one("SELECT 1")
                inside.wait(20)
                leave.wait(20)

        threads = [threading.Thread(target=stay) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(20)
        with pytest.raises(LockedError) as full, database.reading() as transaction:
            transaction.one("SELECT 1")
        assert "store.connections" in (full.value.hint or "")
        leave.set()
        for thread in threads:
            thread.join()
        with database.reading() as transaction:
            count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            assert transaction.one(count) == (2,)


def test_how_often_the_server_is_waited_for(proxy):
    clock = SystemClock()
    with closing(open_catalog(proxy.url)) as database:
        catalog = Catalog(database, "local", clock)
        store = Store(open_bucket("memory://"), catalog)
        saver = Saver(store, WorkspaceId("0" * 16), clock, random.Random(1).randbytes)
        saver.create(b"/work")
        state = {b"f%d" % number: b"%d" % number for number in range(200)}
        names = [saver.save(state)]

        def trips(work):
            before = proxy.trips
            work()
            return proxy.trips - before

        # It begins, asks, gives numbers, adds new content, adds the rest, and commits.
        state[b"f7"] = b"changed"
        commit = saver.prepare(state)
        assert trips(lambda: catalog.commit(commit)) == 6
        hashes = [blob.hash for blob in commit.blobs]
        for question in (
            lambda: catalog.cursor(saver.workspace),
            lambda: catalog.checkpoint(names[0]),
            lambda: catalog.checkpoints(limit=5),
            lambda: catalog.changesets([*names, commit.checkpoint.id]),
            lambda: catalog.known(Hash(os.urandom(16)) for _ in range(2000)),
            lambda: catalog.locate(hashes),
            catalog.used_bytes,
        ):
            assert trips(question) == 1
        assert trips(lambda: catalog.locate([])) == 0
        settled = store.collector()
        assert trips(settled.settle) < 20  # however many pages that is


def test_a_transaction_for_one_statement_takes_no_second(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        with pytest.raises(RuntimeError, match="second"), database.reading(once=True) as transaction:  # noqa: PT012
            transaction.one("SELECT 1")
            transaction.one("SELECT 1")
        with pytest.raises(RuntimeError, match="stream"), database.reading(once=True) as transaction:
            transaction.stream("SELECT 1")
        with database.reading() as transaction:
            assert transaction.one("SELECT 1") == (1,)


def test_a_reader_does_not_see_what_the_server_has_lost_meanwhile(proxy):
    """A reading transaction begins with its first statement: a connection that is gone by then costs nothing."""
    with closing(open_catalog(proxy.url)) as database:
        with database.reading() as transaction:
            proxy.cut_all()
            assert transaction.one("SELECT 1") == (1,)
        assert proxy.connections == 2


def test_a_forked_child_has_connections_of_its_own(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        who = "SELECT pg_backend_pid()"
        with database.reading() as transaction:
            mine = transaction.one(who)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                with database.writing() as transaction:
                    os.write(write, repr(transaction.one(who)).encode())
                database.close()
                del database
                gc.collect()
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        theirs = os.read(read, 100).decode()
        os.close(read)
        assert theirs
        assert theirs != repr(mine)
        with database.reading() as transaction:
            assert transaction.one(who) == mine, "the child has not ended it"


def test_a_child_that_is_forked_in_a_transaction_leaves_it_alone(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        child = 0
        try:
            with database.writing() as transaction:
                transaction.run("INSERT INTO tenants (name, swept, latest) VALUES ('mine', 0, 0)")
                child = os.fork()
                if child:
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                else:
                    with database.reading() as other:
                        assert other is not transaction
                        assert other.all("SELECT name FROM tenants") == []
        except RuntimeError:
            if child:
                raise
            os._exit(7)  # it may not end what is its parent's
        finally:
            if not child:
                os._exit(1)
        with database.reading() as transaction:
            assert transaction.all("SELECT name FROM tenants") == [("mine",)]


def test_a_connection_that_was_ended_while_idle_costs_nobody_anything(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        for _ in range(2):
            execute(
                catalog_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'",
            )
            with database.writing() as transaction:
                transaction.run("UPDATE tenants SET swept = 1")
            with database.reading() as transaction:
                transaction.one("SELECT 1")


def test_a_process_that_is_gone_without_a_word_holds_nobody_up(proxy, catalog_url):
    """Its connection is cut before the server hears of that: the next one of the same process has it ended."""
    with closing(open_catalog(proxy.url, timeout=20)) as database:
        with pytest.raises(StorageError) as lost, database.writing() as transaction:  # noqa: PT012
            transaction.run("UPDATE tenants SET swept = 1")
            proxy.judge = lambda _: "before"
            transaction.one("SELECT 1")
        assert lost.value.code == "connection_lost"
        proxy.judge = lambda _: None
        with database.writing() as transaction:
            transaction.one("SELECT 1")


def test_an_idle_writer_is_ended_by_the_server(catalog_url, monkeypatch):
    """As a process that is stopped in the middle: others must not wait for it for ever."""
    monkeypatch.setattr("holdfast.store.postgresql.database._IDLE", 50)
    one = open_catalog(catalog_url)
    with closing(one), closing(open_catalog(catalog_url, timeout=20)) as two:
        with pytest.raises(StorageError) as lost, one.writing() as transaction:  # noqa: PT012
            transaction.run("UPDATE tenants SET swept = 1")
            with two.writing() as other:
                other.one("SELECT 1")
            transaction.one("SELECT 1")
        assert lost.value.code == "connection_lost"
        with one.reading() as transaction:
            transaction.one("SELECT 1")


def test_an_interrupt_in_the_middle_leaves_nothing_behind(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        with pytest.raises(KeyboardInterrupt), database.writing() as transaction:  # noqa: PT012
            transaction.run("INSERT INTO tenants (name, swept, latest) VALUES ('x', 0, 0)")
            raise KeyboardInterrupt
        with database.writing() as transaction:
            assert transaction.all("SELECT * FROM tenants") == []


# --- what goes wrong ---


@pytest.mark.parametrize("host", ["127.0.0.1:1", "/nowhere/at/all"])
def test_a_server_that_is_not_there(host):
    url = f"postgresql://me:s3cret@/x?host={host}" if host[0] == "/" else f"postgresql://me:s3cret@{host}/x"
    with pytest.raises(StorageError) as failed:
        open_catalog(url, timeout=0.1)
    assert failed.value.code == "unreachable"
    assert "me@" in failed.value.message
    assert "s3cret" not in told(failed.value)
    assert "\n" not in failed.value.message


def test_a_wrong_name_is_told_at_once(postgresql_server):
    with pytest.raises(StorageError) as failed:
        open_catalog(postgresql_server.url("nosuch"), timeout=600)
    assert failed.value.code == "unreachable"
    assert "nosuch" in failed.value.message


def test_a_server_that_is_away_for_a_moment_is_waited_for(proxy, caplog):
    with closing(open_catalog(proxy.url, timeout=30)) as database:
        proxy.refusing = True
        proxy.cut_all()
        timer = threading.Timer(0.3, lambda: setattr(proxy, "refusing", False))
        timer.start()
        with database.reading() as transaction:
            assert transaction.one("SELECT 1") == (1,)
        timer.join()


def test_an_encoding_that_cannot_hold_every_text_is_refused(postgresql_server):
    postgresql_server.execute("DROP DATABASE IF EXISTS latin")
    postgresql_server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with pytest.raises(StorageError) as refused:
            open_catalog(postgresql_server.url("latin"))
        assert "LATIN1" in refused.value.message
    finally:
        postgresql_server.drop_database("latin")


def test_damage_is_found_by_the_database_itself(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        with database.writing() as transaction:
            transaction.run("INSERT INTO tenants (name, swept, latest) VALUES ('x', 0, 0)")
            transaction.run(
                "INSERT INTO packs (tenant, id, key, size, created_at, spared_until) VALUES (1, 'a', 'b', 1, 1, 0)"
            )
        assert database.check() == []
        with psycopg.connect(catalog_url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("DELETE FROM holdfast.tenants")
        assert database.check() == ["1 rows of packs refer to no row of tenants"]


def test_a_table_that_is_gone_is_damage(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        execute(catalog_url, "DROP TABLE holdfast.pins")
        with pytest.raises(IntegrityError), database.reading() as transaction:
            transaction.all("SELECT * FROM pins")


def test_what_a_server_is_like(catalog_url):
    with closing(open_catalog(catalog_url)) as database:
        found = server_info(database)
    assert found.forgetful == ("fsync", "full_page_writes"), "as tests have it"
    assert not found.standby
    assert found.guarded, "by a socket of this machine"
    assert abs(found.clock) < 5
    assert found.server.split(".")[0].isdigit()


def test_a_commit_survives_where_the_server_would_not_wait(catalog_url, postgresql_server):
    """I4"""
    name = catalog_url.partition("@/")[2].partition("?")[0]
    postgresql_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    seen: list[object] = []
    said = "BEGIN RAISE WARNING '%', current_setting('synchronous_commit'); RETURN NULL; END"
    with closing(open_catalog(catalog_url)) as database, database.writing() as transaction:
        transaction.run(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $text${said}$text$")
        transaction.run(
            """CREATE CONSTRAINT TRIGGER t AFTER INSERT ON commit_marks DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION note()"""
        )
        assert isinstance(transaction, PostgresTransaction)
        assert transaction.link is not None
        transaction.link.connection.add_notice_handler(lambda notice: seen.append(notice.message_primary))
    assert seen == ["on"]


def test_marks_do_not_pile_up(catalog_url):
    execute(
        catalog_url, "INSERT INTO holdfast.commit_marks VALUES ('old', 3, now() - interval '8 days'), ('new', 1, now())"
    )
    with closing(open_catalog(catalog_url)) as database:
        for _ in range(3):
            with database.writing() as transaction:
                transaction.run("UPDATE tenants SET swept = 0")
    rows = execute(catalog_url, "SELECT number FROM holdfast.commit_marks WHERE client <> 'new' ORDER BY 1")
    assert (3,) in rows, "this connection's"
    assert execute(catalog_url, "SELECT 1 FROM holdfast.commit_marks WHERE client = 'old'") == []
    assert execute(catalog_url, "SELECT 1 FROM holdfast.commit_marks WHERE client = 'new'") == [(1,)]


def test_what_only_looks_leaves_no_mark(catalog_url):
    before = execute(catalog_url, "SELECT count(*) FROM holdfast.commit_marks")
    with closing(open_catalog(catalog_url)) as database, database.writing() as transaction:
        transaction.all("SELECT * FROM tenants")
    assert execute(catalog_url, "SELECT count(*) FROM holdfast.commit_marks") == before


def test_a_path_may_be_as_long_as_the_system_allows(catalog_url):
    with closing(open_catalog(catalog_url)) as database, database.writing() as transaction:
        transaction.run("INSERT INTO tenants (name, swept, latest) VALUES ('x', 0, 0)")
        transaction.run(
            "INSERT INTO workspaces (tenant, id, path, device, inode, created_at, live) VALUES (1, 'w', ?, 1, 1, 1, 1)",
            (os.urandom(4095),),
        )


# --- encryption of the way ---


@pytest.fixture
def front(postgresql_server, catalog_url, tmp_path):
    made = []

    def begin(host="localhost", *, encrypts=True):
        found = Front(postgresql_server.folder, make_certificate(tmp_path, host) if encrypts else None)
        made.append(found)
        database = catalog_url.partition("@/")[2].partition("?")[0]
        return found, f"postgresql://postgres@localhost:{found.port}/{database}?hostaddr=127.0.0.1"

    yield begin
    for one in made:
        one.close()


def test_a_catalog_is_reached_by_tls_and_its_certificate_is_checked(front, tmp_path):
    before, url = front()
    for way in ("sslmode=require", f"sslmode=verify-full&sslrootcert={tmp_path}/localhost.crt"):
        count = before.encrypted
        with closing(open_catalog(f"{url}&{way}")) as catalog, catalog.reading() as transaction:
            assert transaction.one("SELECT 1") == (1,)
        assert before.encrypted > count


@pytest.mark.parametrize("wrong", ["nobody knows who signed it", "it is for another host", "there is no tls"])
def test_a_way_that_is_not_as_asked_for_is_not_taken(front, tmp_path, wrong):
    """And nothing is said in the open instead."""
    before, url = front("elsewhere" if wrong == "it is for another host" else "localhost", encrypts="tls" not in wrong)
    (tmp_path / "known").mkdir()
    known, _ = make_certificate(tmp_path / "known", "localhost")
    if wrong == "it is for another host":
        known = tmp_path / "elsewhere.crt"
    way = "sslmode=require" if "tls" in wrong else f"sslmode=verify-full&sslrootcert={known}"
    with pytest.raises(StorageError) as caught:
        open_catalog(f"{url}&{way}", timeout=1)
    assert {
        "nobody knows who signed it": "certificate verify failed",
        "it is for another host": "does not match host name",
        "there is no tls": "does not support SSL",
    }[wrong] in told(caught.value)
    assert before.port
