"""Which variables of a compiled module outlive a launch with another value, as its PTX tells."""

import pytest

from passagent.kernels.ptx import variables, without_comments, written

HEAD = """
.version 9.1
.target sm_90
.address_size 64

	// .globl	f
"""
BODY = """
.visible .entry f(
	.param .u64 f_param_0,
	.param .u64 f_param_1
)
{{
	.reg .pred 	%p<2>;
	.reg .b64 	%rd<11>;

	ld.param.u64 	%rd1, [f_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
{}
	st.global.f32 	[%rd2], %f1;
	ret;

}}
"""
NUMBER = ".global .align 4 .u32 c = 4;"
TABLE = ".global .align 4 .b8 c[12] = {0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64};"
READ = {
    "unused": (NUMBER, "	mov.u32 	%f1, 4;"),
    "a name that begins alike": (NUMBER, "	mov.u64 	%rd5, c1;\n	st.global.u32 	[%rd5], %r1;"),
    "by name": (NUMBER, "	ld.global.u32 	%r1, [c];"),
    "at an offset": (TABLE, "	ld.global.nc.f32 	%f1, [c+8];"),
    "by an index": (
        TABLE,
        "	mov.u64 	%rd4, c;\n	add.s64 	%rd5, %rd4, %rd3;\n	ld.global.nc.f32 	%f1, [%rd5];",
    ),
    "four at once": (
        TABLE,
        "	mov.u64 	%rd4, c;\n$L_0:\n	@%p1 ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd4+16];",
    ),
    "one of two tables": (
        TABLE,
        "	mov.u64 	%rd5, c;\n	selp.b64 	%rd6, %rd5, %rd7, %p1;\n	ld.u32 	%r1, [%rd6];",
    ),
}
WRITTEN = {
    "by name": (NUMBER, "	st.global.u32 	[c], %r2;"),
    "added to": (NUMBER, "	atom.global.add.u32 	%r1, [c], 1;"),
    "reduced": (NUMBER, "	red.global.add.u32 	[c], 1;"),
    "by an index": (
        TABLE,
        "	mov.u64 	%rd4, c;\n	add.s64 	%rd5, %rd4, %rd3;\n	st.global.f32 	[%rd5], %f1;",
    ),
    "through a choice": (
        TABLE,
        "	mov.u64 	%rd5, c;\n	selp.b64 	%rd6, %rd5, %rd3, %p1;\n	st.global.u32 	[%rd6], %r1;",
    ),
    "in a loop, above": (
        TABLE,
        "	mov.u64 	%rd5, %rd3;\n$L_1:\n	st.global.u32 	[%rd5], %r1;\n	mov.u64 	%rd4, c;\n"
        "	add.s64 	%rd5, %rd4, 4;\n	@%p1 bra 	$L_1;",
    ),
    "address kept in local memory": (
        TABLE,
        "	mov.u64 	%rd5, c;\n	st.local.v2.u64 	[%rd4], {%rd5, %rd7};",
    ),
    "address kept in memory": (TABLE, "	mov.u64 	%rd5, c;\n	st.global.u64 	[%rd2], %rd5;"),
    "address given to a function": (
        TABLE,
        "mov.u64 %rd5, c;\n{ // callseq 0, 0\n.param .b64 param0;\nst.param.b64 [param0+0], %rd5;\n"
        "call.uni _Z1gPi, (param0);\n}",
    ),
    "address through arithmetic": (TABLE, "	mov.u64 	%rd5, c;\n	xor.b64 	%rd6, %rd5, %rd3;"),
    "address as a loaded value's place": (
        TABLE,
        "	mov.u64 	%rd5, c;\n	ld.global.u64 	%rd5, %rd5;",
    ),
    "copied into": (
        TABLE,
        "	mov.u64 	%rd5, c;\n	cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r1], 16;",
    ),
    "address in another's value": (
        f"{NUMBER}\n.global .align 8 .u64 q = generic(c);",
        "	ld.global.u64 	%rd3, [q];\n	st.global.u32 	[%rd3], %r2;",
    ),
    "in a function of its own": (
        f"{NUMBER}\n.func _Z1gv()\n{{\n	st.global.u32 	[c], %r2;\n	ret;\n}}",
        "	ld.global.u32 	%r1, [c];",
    ),
    "declared in a function": ("", "	.global .align 4 .u32 c;\n	ld.global.u32 	%r1, [c];"),
    "managed": (".global .attribute(.managed) .align 4 .u32 c;", "	st.global.u32 	[c], %r2;"),
}


ELSEWHERE = {
    "behind a function": ".func (.reg .b32 r) g(.reg .b32 a)\n{\n{ ld.v2.u32 {%r1, %r2}, [a]; }\nret;\n}\n"
    + NUMBER,
    "behind a prototype": f".extern .func (.param .b32 r) vprintf\n(\n.param .b64 a\n)\n;\n{TABLE}",
}


def module(case: tuple[str, str]) -> str:
    return without_comments(HEAD + case[0] + BODY.format(case[1]))


@pytest.mark.parametrize("name", READ)
def test_what_is_only_read_is_a_constant(name):
    assert variables(module(READ[name])) == {"c"}
    assert written(module(READ[name])) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_what_may_be_written_is_found(name):
    assert "c" in written(module(WRITTEN[name]))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_constant_may_be_declared_between_functions(name):
    assert written(module((ELSEWHERE[name], "ld.global.u32 %r1, [c];"))) == []
    assert written(module((ELSEWHERE[name], "st.global.u32 [c], %r1;"))) == ["c"]
