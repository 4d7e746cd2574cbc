"""Tables in C++ kernels: what is the same in every row is computed once, before the rows."""

from __future__ import annotations

from passagent.expert.lower.call import HALVES
from passagent.expert.lower.expressions import Axis, Expr, parts
from passagent.expert.schedule.parts import Group, Stage, Store
from passagent.expert.write.cpp_bands import BandWriter
from passagent.expert.write.cpp_values import Scope
from passagent.expert.write.writer import cost

FEWEST_ROWS = 8
"""Rows from which a table pays."""
LONGEST = 16384
"""Elements of a table, at most."""
COSTLY = 4
"""Operations of a value of float32 that is worth a table; one of 16 bits is worth it for its conversion."""


class TableWriter(BandWriter):
    """Finds the values of a group that depend on the innermost axis alone, and writes their tables."""

    def find_tables(self, group: Group) -> list[str]:
        """Choose the tables of a group; the lines that fill them."""
        self.tables = {}
        rows = [*group.rows, *([group.tile] if group.tile else [])]
        chosen: dict[Expr, Axis] = {}
        for stage in group.stages:
            if len(stage.loops) == 1 and self.s.volume(rows) >= FEWEST_ROWS * self._tile_size(group):
                self._choose(stage, chosen)
        loads = {e: _converted(e) for e in chosen}
        stems = {e: f"{self.names[load.data]}_table" if load else "table" for e, load in loads.items()}
        names = {e: self.fresh(stem) for e, stem in stems.items()}
        lines = [line for e, axis in chosen.items() for line in self._filled(e, axis, names[e])]
        self.tables = names
        return lines

    def _tile_size(self, group: Group) -> int:
        return group.tile.size.hint if group.tile else 1

    def _choose(self, stage: Stage, chosen: dict[Expr, Axis]) -> None:
        axis = stage.loops[0]
        visited: set[Expr] = set()

        def walk(e: Expr) -> None:
            if e in visited or e.kind == "reduce":
                return
            visited.add(e)
            if self.s.axes(e.every) == {axis} and e.dtype in {*HALVES, "float32"} and self._pays(e):
                chosen[e] = axis
                return
            for a in e.args:
                walk(a)

        if not self.is_short(axis) and axis.size.hint <= LONGEST:
            for item in stage.items:
                walk(item.expr if isinstance(item, Store) else item.args[0])

    def _pays(self, e: Expr) -> bool:
        return cost(e, set()) >= COSTLY or _holds_halves(e)

    def _filled(self, e: Expr, axis: Axis, name: str) -> list[str]:
        """The loop that fills a table."""
        group, self.g = self.g, Group([], None, [])
        stage = Stage([axis], [])
        self.begin(stage)
        self.uses = dict.fromkeys(parts(e), 2)
        size = self.axis_size(axis)
        self.buffers.append((name, "float", size))
        load = _converted(e)
        if load is not None and self.walks(self.s.addresses[load]):
            self.inputs[load.data] = load.dtype
            row, _ = self.pointer(self.names[load.data], load.dtype, self.s.addresses[load], const=True)
            lines = [*self.scope.lines[0], f"load_f32(&{name}[0], {row}, {size});"]
        else:
            value = self.emit(e, 1)
            self.scope.lines[1].append(f"{name}[start + j] = {value};")
            lines = self.nest(stage)
        self.g = group
        return lines

    def begin(self, stage: Stage) -> None:
        """Make ready to write a stage."""
        depth = len(stage.loops)
        self.scope = Scope(
            stage.loops,
            [[] for _ in range(depth + 1)],
            [[] for _ in range(depth + 1)],
            [{} for _ in range(depth + 1)],
        )
        self.clauses: dict[str, list[str]] = {}
        self.before_block: list[str] = []
        self.after_block: list[str] = []
        self.values_of, self.pointers, self.new_kept = {}, {}, {}

    def nest(self, stage: Stage) -> list[str]:
        """Write the loops of a stage, as CppWriter.nest does."""
        raise NotImplementedError


def _holds_halves(e: Expr) -> bool:
    return any(part.kind == "load" and part.dtype in HALVES for part in parts(e))


def _converted(e: Expr) -> Expr | None:
    """The load of 16 bits that `e` is as a float, and no more than that."""
    if e.kind == "op" and e.data == "cast" and e.dtype == "float32":
        e = e.args[0]
    return e if e.kind == "load" and e.dtype in HALVES else None
