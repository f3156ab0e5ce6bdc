from kvcanary_cli.sim.pages import PageList, SlotMath


def test_page_0_is_never_handed_out():
    free = PageList(slots=64, page_size=16)
    assert free.num_pages == len(free) == 3
    assert free.take(3) == [1, 2, 3]
    assert len(free) == 0


def test_freed_pages_go_first_in_their_order():
    free = PageList(slots=96, page_size=16)
    free.take(3)
    free.give_back([3, 1])
    assert free.take(4) == [3, 1, 4, 5]


def test_freed_slots_go_last():
    free = PageList(slots=6, page_size=1)
    free.take(3)
    free.give_back([3, 1])
    assert free.take(4) == [4, 5, 3, 1]


def test_slots_of_pages_keep_the_order_of_the_pages():
    assert SlotMath(4).of_pages([3, 1]).tolist() == [12, 13, 14, 15, 4, 5, 6, 7]
    assert SlotMath(1).of_pages([3, 1]).tolist() == [3, 1]


def test_slots_of_columns_cross_pages():
    assert SlotMath(4).of_columns([3, 1, 2], 2, 9).tolist() == [14, 15, 4, 5, 6, 7, 8]
    assert SlotMath(4).of_columns([3, 1, 2], 4, 5).tolist() == [4]
    assert SlotMath(1).of_columns([3, 1, 2], 1, 3).tolist() == [1, 2]
