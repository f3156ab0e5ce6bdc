from kvcanary_cli.trace.pieces import lay, own_id


def test_blocks_end_where_they_should():
    assert [len(lay([(1, tokens)], 4)) for tokens in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert len(lay([(1, 3), (2, 3), (3, 6)], 4)) == 3


def test_equal_beginnings_have_equal_ids():
    whole, longer = lay([(1, 8), (2, 3)], 4), lay([(1, 8), (2, 3), (3, 2)], 4)
    assert whole[:2] == longer[:2] == lay([(1, 8)], 4)
    # the partial block of 3 tokens is no whole one
    assert whole[2] != longer[2]


def test_order_length_and_place_make_ids_differ():
    ids = [lay(pieces, 4)[-1] for pieces in ([(1, 4), (2, 4)], [(2, 4), (1, 4)], [(1, 3), (2, 5)], [(2, 8)])]
    assert len(set(ids)) == 4
    assert lay([(1, 3), (2, 5), (3, 4)], 4)[-1] != lay([(1, 4), (2, 4), (3, 4)], 4)[-1]
    many = lay([(number % 3, 1 + number % 7) for number in range(3000)], 4)
    assert len(set(many)) == len(many)


def test_empty_pieces_change_nothing():
    assert lay([(1, 5), (9, 0), (2, 3)], 4) == lay([(1, 5), (2, 3)], 4)


def test_ids_of_models():
    models = []
    assert own_id("a", 7, models) == 7
    assert own_id("b", 7, models) != 7
    assert own_id("b", 7, models) == own_id("b", 7, models)
    assert models == ["a", "b"]
