"""Lines that are no events: what is wrong, where, what was found and what is expected."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.decode import LineDecoder, NotJsonError
from kvcanary_cli.trace.events import same_event
from kvcanary_cli.trace.files import LineError


def decode(line: str | bytes) -> ev.Event:
    return LineDecoder().decode(line.encode() if isinstance(line, str) else line)


def failure(line: str | bytes) -> LineError:
    with pytest.raises(LineError) as caught:
        decode(line)
    return caught.value


def test_keys_become_fields():
    event = decode('{"ev":"kv","op":"copy","slots":[1,[4,2]],"from":[[7,3]],"by":"A","t":1}')
    assert same_event(
        event, ev.Kv(op="copy", slots=np.array([1, 4, 5]), from_=np.array([7, 8, 9]), by="A", t=1.0)
    )


def test_null_is_an_absent_key():
    event = decode('{"ev":"forward","rows":[1],"prefix":[0],"slots":null,"width":null,"mode":null}')
    assert same_event(event, ev.Forward(rows=[1], prefix=[0]))


@pytest.mark.parametrize(
    "line", ['{"ev":"bind","row":1,"rid":"A"}\r\n', ' {"rid" : "A",\t"row":1 ,"ev":"bind"} \n']
)
def test_space_and_order_of_keys_do_not_matter(line):
    assert same_event(decode(line), ev.Bind(row=1, rid="A"))


@pytest.mark.parametrize(
    "line",
    [
        '{"ev":"bind","x-host":{"row":[9]},"row":1,"x-":null,"rid":"A"}',
        '{"ev":"bind","row":1,"rid":"\\u0041"}',
    ],
)
def test_own_keys_and_escapes_do_not_change_the_event(line):
    assert same_event(decode(line), ev.Bind(row=1, rid="A"))


def test_own_keys_of_a_header_and_its_parts():
    head = decode(
        '{"ev":"header","x-a":1,"format":"kvcanary-trace","version":1,'
        '"pool":{"slots":8,"rows":2,"row_width":4,"x-b":1},"groups":[{"kind":"full","x-c":[]}],'
        '"sources":[{"name":"k","bytes_per_slot":16,"hashed_bytes":0,"x-d":{}}],'
        '"capacities":{"x-e":0,"verify_capacity":3},"continues":{"part":2,"of":"run","x-f":0},'
        '"producer":{"x-g":1,"rank":{"tp":0}}}'
    )
    assert isinstance(head, ev.Header)
    assert head.pool == ev.Pool(slots=8, rows=2, row_width=4)
    assert head.capacities == ev.Capacities(verify_capacity=3)
    assert head.continues == ev.Continues(part=2, of="run")
    assert head.producer == {"x-g": 1, "rank": {"tp": 0}}


def test_a_note_may_have_any_keys():
    assert isinstance(decode('{"ev":"note","text":[1],"slots":"none","t":"noon"}'), ev.Note)


def test_free_form_keys_are_kept():
    event = decode('{"ev":"publish","at":0,"slots":[3],"key":{"slots":"lora","salt":[1,{"a":1}]}}')
    assert isinstance(event, ev.Publish)
    assert event.key == {"slots": "lora", "salt": [1, {"a": 1}]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello", "not JSON (expecting value at column 1)"),
        ('{"ev":"bind","row":1 "rid":"A"}', "not JSON (expecting ',' delimiter at column 22)"),
        ('{"ev":"bind","row":01,"rid":"A"}', "not JSON (expecting ',' delimiter at column 21)"),
        ('{"ev":"bind","row":1,"rid":"A"', "not JSON (expecting ',' delimiter at column 31)"),
        ('{"ev":"bind","row":1,"rid":"A', "not JSON (unterminated string at column 28)"),
        ('{"ev":"bind","row":1,"rid":"A\\q"}', "not JSON (unexpected \\escape at column 30)"),
        ('{"ev":"bind","row":1,"rid":"A"} {}', "not JSON (extra data at column 33)"),
        ('{"ev":"bind","row":1,"rid":"A","t":NaN}', "not JSON (NaN is not a JSON number)"),
        ('{"ev":"bind","row":1,"rid":"A","x-t":-Infinity}', "not JSON (-Infinity is not a JSON number)"),
    ],
)
def test_not_json(line, message):
    error = failure(line)
    assert isinstance(error, NotJsonError)
    assert str(error) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ev":"bind","row":1,"rid":"A","t":1e999}', "number 1e999 is out of range"),
        ('{"ev":"bind","row":1,"rid":"A","x-y":-1e999}', "number -1e999 is out of range"),
        ('{"ev":"alloc","to":"A","slots":[' + "9" * 5000 + "]}", "a number has too many digits"),
        ('{"ev":"note","a":' + "[" * 5000 + "]" * 5000 + "}", "lists or objects are nested too deeply"),
        (
            '{"ev":"bind","row":1,"rid":"\\ud800"}',
            "a string has half of a surrogate pair, which is no character",
        ),
    ],
)
def test_json_that_can_not_be_held(line, message):
    error = failure(line)
    assert not isinstance(error, NotJsonError)
    assert str(error) == message


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"ev":"bind","row":1,"rid":"A","row":1}', "row"),
        ('{"ev":"bind","row":1,"rid":"A" ,"rid"  :"B"}', "rid"),
        ('{"ev":"bind","ev":"bind","row":1,"rid":"A"}', "ev"),
        ('{"ev":"bind","row":1,"rid":"A","r\\u0069d":"B"}', "rid"),
        ('{"ev":"bind","row":1,"x-a":1,"rid":"A","x-a":2}', "x-a"),
        ('{"ev":"bind","row":1,"rid":"A","x-a":{"b":1,"b":1}}', "b"),
        ('{"ev":"publish","at":0,"slots":[1],"key":{":k":1,":k":2}}', ":k"),
        ('{"ev":"publish","rid":"v","at":0,"slots":[1],"key":{"l":"v",":k":2,":k":3}}', ":k"),
        ('{"ev":"note","a":{"b":[{"c":1,"c":2}]}}', "c"),
        (
            '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"rows":2,"slots":8,"rows":3}}',
            "rows",
        ),
    ],
)
def test_a_key_twice(line, key):
    assert str(failure(line)) == f'key "{key}" appears twice in one object'


def test_a_key_twice_is_found_after_the_same_keys_were_seen_once():
    decoder = LineDecoder()
    for _ in range(2):
        decoder.decode(b'{"ev":"bind","row":1,"rid":"A"}')
        with pytest.raises(LineError, match='key "rid" appears twice'):
            decoder.decode(b'{"ev":"bind","row":1,"rid":"A","rid":"A"}')
        with pytest.raises(LineError, match='key "rid" appears twice'):
            decoder.decode(rb'{"ev":"bind","row":1,"rid":"A","r\u0069d":"A"}')


@pytest.mark.parametrize("rid", [":", '":', "a:b", "rid", '","rid":"', "\\", "é"])
def test_values_that_look_like_keys_are_values(rid):
    line = json.dumps({"ev": "bind", "row": 1, "rid": rid, "x-a": [rid, rid]})
    assert same_event(decode(line), ev.Bind(row=1, rid=rid))
    assert same_event(decode(json.dumps({"ev": "bind", "rid": rid, "row": 1})), ev.Bind(row=1, rid=rid))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3", "$: an object is expected, found 3"),
        ('["ev"]', '$: an object is expected, found ["ev"]'),
        ("{}", '$: key "ev" is missing, every event names its kind'),
        ('{"ev":7}', "$.ev: a string is expected, found 7"),
        ('{"ev":"allocc","to":"A","slots":[1]}', '$.ev: unknown event "allocc", did you mean "alloc"?'),
        ('{"ev":"zzz"}', '$.ev: unknown event "zzz"'),
        ('{"ev":"alloc","to":"A","slotz":[1]}', '$.slotz: unknown key of event alloc, did you mean "slots"?'),
        ('{"ev":"sweep","group":"swa"}', "$.group: unknown key of event sweep"),
        ('{"ev":"sweep","X-a":1}', "$.X-a: unknown key of event sweep"),
        ('{"ev":"alloc","slots":[1]}', '$: key "to" of event alloc is missing'),
        ('{"ev":"bind","row":-1,"rid":"A"}', "$.row: a whole number of at least 0 is expected, found -1"),
        ('{"ev":"bind","row":true,"rid":"A"}', "$.row: a whole number is expected, found true"),
        ('{"ev":"bind","row":1.0,"rid":"A"}', "$.row: a whole number is expected, found 1.0"),
        ('{"ev":"bind","row":"1","rid":"A"}', '$.row: a whole number is expected, found "1"'),
        ('{"ev":"bind","row":1,"rid":null}', "$.rid: a string is expected, found null"),
        ('{"ev":"bind","row":1,"rid":""}', '$.rid: a string that is not empty is expected, found ""'),
        ('{"ev":"bind","row":1,"rid":"A","t":"0"}', '$.t: a number is expected, found "0"'),
        (
            '{"ev":"bind","row":3000000000,"rid":"A"}',
            "$.row: a whole number of at most 2147483647 is expected, found 3000000000",
        ),
        (
            '{"ev":"end","rid":"A","why":"doen"}',
            '$.why: "doen" is not one of done, cancel, retract, did you mean "done"?',
        ),
        ('{"ev":"end","rid":"A","why":3}', "$.why: 3 is not one of done, cancel, retract"),
        ('{"ev":"alloc","to":"A","slots":[1],"group":"x"}', '$.group: "x" is not one of full, swa'),
        (
            '{"ev":"forward","rows":[1],"prefix":[0],"mode":"decod"}',
            '$.mode: "decod" is not one of extend, decode, mixed, verify, draft, idle, did you mean'
            ' "decode"?',
        ),
        (
            '{"ev":"stamp","slot":1,"xor":1,"field":"prevhash"}',
            '$.field: "prevhash" is not one of token, position, prev_hash, kv_hash, did you mean'
            ' "prev_hash"?',
        ),
        (
            '{"ev":"stamp","slot":1,"xor":1,"field":"token","buffer":"x"}',
            '$.buffer: "x" is not one of head, tail',
        ),
        ('{"ev":"kv","op":"move","slots":[1]}', '$.op: "move" is not one of write, flip, zero, copy'),
        (
            '{"ev":"kv","op":"flip","slots":[1],"byte":0,"xor":0}',
            "$.xor: a whole number of at least 1 is expected, found 0",
        ),
        (
            '{"ev":"kv","op":"flip","slots":[1],"byte":0,"xor":256}',
            "$.xor: a whole number of at most 255 is expected, found 256",
        ),
        (
            '{"ev":"truth","rid":"A","at":0,"tokens":[1,2147483648]}',
            "$.tokens[1]: a whole number of at most 2147483647 is expected, found 2147483648",
        ),
        (
            '{"ev":"forward","rows":[1],"prefix":[0],"expect":[-2]}',
            "$.expect[0]: a whole number of at least -1 is expected, found -2",
        ),
        (
            '{"ev":"forward","rows":[1],"prefix":[0],"positions":[9223372036854775808]}',
            "$.positions[0]: a whole number of at most 9223372036854775807 is expected,"
            " found 9223372036854775808",
        ),
        (
            '{"ev":"digest","source":"k","slots":[1],"hash":["0xg"]}',
            '$.hash[0]: "0x" with 1 to 16 hex digits is expected, found "0xg"',
        ),
        ('{"ev":"publish","at":0,"slots":[1],"key":3}', "$.key: an object is expected, found 3"),
        ('{"ev":"reload","key":"h","slots":[1],"stamps":0}', "$.stamps: true or false is expected, found 0"),
        (
            '{"ev":"offload","key":"h","slots":[1],"scale":1.5}',
            "$.scale: a whole number or a string is expected, found 1.5",
        ),
        ('{"ev":"alloc","to":"A","slots":[1,[2,0]]}', "$.slots[1][1]: a run has at least 1 slot, found 0"),
        ('{"ev":"alloc","to":"A","slots":[]}', "$.slots: the slot list is empty, it needs at least 1 slot"),
        (
            '{"ev":"swa_map","full":[1],"swa":[false]}',
            "$.swa[0]: a slot number or a run [start, count] is expected",
        ),
        ('{"ev":"kv","op":"copy","slots":[1],"from":7}', "$.from: a list of slots is expected, found 7"),
        (
            '{"ev":"alloc","to":"A","slots":[1,9223372036854775808]}',
            "$.slots[1]: slot 9223372036854775808 does not fit into 64 bits",
        ),
    ],
)
def test_json_that_is_no_event(line, message):
    error = failure(line)
    assert str(error).startswith(message)
    # the same line with a key of one's own goes another way and must say the same
    if line.startswith("{") and len(line) > 2:
        assert str(failure(line.replace("{", '{"x-a":1,', 1))) == str(error)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('{"ev":"zzz"}', "events are header, bind, unbind, move, "),
        (
            '{"ev":"unbind","row":1,"rid":"A"}',
            "keys of event unbind are ev, t, row; keys of your own begin with x-",
        ),
        ('{"timestamp":1,"input_length":3}', "a request trace is read by `inspect`, `simulate` and `replay`"),
    ],
)
def test_hints(line, hint):
    assert (failure(line).hint or "").startswith(hint)


HEAD = '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":8,"rows":2,"row_width":4}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"ev":"header","format":"kvcanary-trace","version":2,"tables":{}}',
            "$.version: trace version is 2, this kvcanary reads version 1",
        ),
        (
            '{"ev":"header","format":"other","version":2,"tables":{}}',
            '$.format: format is "other", "kvcanary-trace" is expected',
        ),
        ('{"ev":"header","format":"kvcanary-trace","version":1}', '$: key "pool" of event header is missing'),
        (
            '{"ev":"header","pool":{"slots":8,"rows":2,"row_width":4}}',
            '$: key "format" of event header is missing',
        ),
        (
            '{"ev":"header","format":"kvcanary-trace","version":"1","pool":{"slots":8,"rows":2,"row_width":4}}',
            '$.version: a whole number is expected, found "1"',
        ),
        (
            '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":0,"rows":2,"row_width":4}}',
            "$.pool.slots: a whole number of at least 1 is expected, found 0",
        ),
        (
            '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":8,"rows":2}}',
            '$.pool: key "row_width" of pool is missing',
        ),
        (
            '{"ev":"header","format":"kvcanary-trace","version":1,"pool":{"slots":8,"rows":2,"row_widht":4}}',
            '$.pool.row_widht: unknown key of pool, did you mean "row_width"?',
        ),
        (
            HEAD + ',"groups":[{"kind":"ful"}]}',
            '$.groups[0].kind: "ful" is not one of full, swa, did you mean "full"?',
        ),
        (HEAD + ',"groups":[{"kind":"full"},{}]}', '$.groups[1]: key "kind" of groups[1] is missing'),
        (HEAD + ',"groups":{}}', "$.groups: a list is expected, found an object"),
        (
            HEAD + ',"sources":[{"name":"k","bytes_per_slot":16,"hashed_bytes":-1}]}',
            "$.sources[0].hashed_bytes: a whole number of at least 0 is expected, found -1",
        ),
        (
            HEAD + ',"sources":[{"name":"k","bytes_per_slot":16,"hashed_bytes":0,"half":"q"}]}',
            '$.sources[0].half: "q" is not one of k, v',
        ),
        (
            HEAD + ',"capacities":{"verify_capacity":0}}',
            "$.capacities.verify_capacity: a whole number of at least 1 is expected, found 0",
        ),
        (
            HEAD + ',"capacities":{"verify_cap":10}}',
            '$.capacities.verify_cap: unknown key of capacities, did you mean "verify_capacity"?',
        ),
        (HEAD + ',"ring_capacity":0}', "$.ring_capacity: a whole number of at least 1 is expected, found 0"),
        (HEAD + ',"state":"running"}', '$.state: "running" is not one of empty, unknown'),
        (HEAD + ',"records":[1]}', "$.records[0]: a string is expected, found 1"),
        (HEAD + ',"continues":{"part":2}}', '$.continues: key "of" of continues is missing'),
        (
            HEAD + ',"token_position_offset":-1}',
            "$.token_position_offset: a whole number of at least 0 is expected",
        ),
    ],
)
def test_headers_that_are_none(line, message):
    assert str(failure(line)).startswith(message)


def test_a_newer_version_gets_the_update_as_hint():
    assert (
        failure('{"ev":"header","format":"kvcanary-trace","version":2,"x":1}').hint
        == "`pip install -U kvcanary`"
    )
