"""PTX without its names: the same after a rename, another after any other change."""

from __future__ import annotations

from tests.tools.ptx_identity import without_names

BEFORE = """
.visible .entry gates( .param .u64 gates_param_0 )
{
	.shared .align 4 .b8 _ZZ5gatesE4kept[64];
	.reg .b32 %r<3>;
	ld.param.u64 %rd1, [gates_param_0];   // the address
	mov.u32 %r1, _ZZ5gatesE4kept;
$L__BB0_1:
	bra $L__BB0_1;
}
"""
RENAMED = (
    BEFORE.replace("gates", "pointwise").replace("_ZZ5pointwiseE4kept", "_ZZ9pointwiseE5saved").replace("the address", "x")
)


def test_a_rename_and_a_comment_leave_it() -> None:
    assert RENAMED != BEFORE
    assert without_names(RENAMED) == without_names(BEFORE)


def test_an_instruction_an_operand_and_a_size_change_it() -> None:
    for old, new in (("mov.u32", "mov.b32"), ("[64]", "[128]"), ("%r1,", "%r2,"), ("gates_param_0]", "gates_param_0+8]")):
        assert without_names(BEFORE.replace(old, new)) != without_names(BEFORE), old


def test_a_constant_that_nothing_reads_leaves_it_and_one_that_is_read_does_not() -> None:
    unread = ".global .align 4 .u32 TILES = 4;\n.global .align 1 .u8 FLAG;\n"
    assert without_names(unread + BEFORE) == without_names(BEFORE)
    read = ".global .align 4 .u32 TILES = 4;\n" + BEFORE.replace("mov.u32", "ld.global.u32 %r3, [TILES];\n\tmov.u32")
    assert without_names(read) != without_names(read.replace("= 4;", "= 8;"))
