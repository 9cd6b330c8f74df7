//! Fits the columns of a list to the width of a terminal.

/// Characters that a column keeps when lines are cut to the width of a terminal: enough for an address.
const KEPT: usize = 15;
/// Characters of the last column below which it is left out: less is not readable.
const LAST_KEPT: usize = 8;
/// Characters that the last column should have, because reasons are there: half a line or so.
const LAST_WANTED: usize = 30;
/// Characters that the last column should have where a row has one line: the first words of a reason.
const ONE_LINE_WANTED: usize = 20;
/// Columns of a terminal from which on a reason may have a line of its own below its row: less is no line for a reason.
const BELOW_FROM: usize = 60;
/// Indentation of a reason below its row.
pub(super) const INDENT: usize = 4;
/// A column is rare if at most one of so many lines has a value in it.
const RARE: usize = 4;
/// Characters around a moved value and its heading: a space between them, and a comma with a space behind them.
const AROUND: usize = 3;
/// Spaces between two columns.
pub(super) const GAP: usize = 2;

/// The contents of a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnUse {
    /// Characters of the heading and of its longest cell.
    pub(super) heading: usize,
    pub(super) longest: usize,
    /// Lines with a value.
    pub(super) filled: usize,
    /// The column is left out where a row has one line and the last column has too little room.
    pub(super) is_optional: bool,
}

impl ColumnUse {
    fn width(self) -> usize {
        self.heading.max(self.longest)
    }
}

/// The form of the last column, which has the reasons, where lines are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastColumn {
    /// It is cut, or below its row if it has too little room.
    Cut,
    /// As [`Self::Cut`], but it continues on further lines instead of being cut.
    Wraps,
    /// It is cut, and left out if nothing of use is left of it: a row has one line.
    OneLine,
}

/// The place of each column.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The columns with their widths.
    pub(super) shown: Vec<(usize, usize)>,
    /// The columns whose values are at the beginning of the last column.
    pub(super) moved: Vec<usize>,
    /// The last column, with this width, is on lines of its own below the row.
    pub(super) is_below: bool,
}

/// Places columns beside each other in at most so many characters; `None`: as many as they need.
///
/// Columns without any value go first. Then the widest columns are cut, but none below [`KEPT`], and never the first one, which
/// has the names. While the last column has too little room for a reason, the values of the rarest column move into it. A last
/// column that wraps is not cut, so that nothing moves into it. If this does not give the last column its room, it goes below
/// its row. Where a row has one line, optional columns are left out instead, if that spares a move.
pub(super) fn lay_out(columns: &[ColumnUse], rows: usize, most: Option<usize>, last: LastColumn) -> Layout {
    let all: Vec<usize> = columns.iter().map(|column| column.width()).collect();
    let Some(most) = most.filter(|most| total_width(&all) > *most) else {
        return Layout { shown: all.into_iter().enumerate().collect(), moved: Vec::new(), is_below: false };
    };
    let wraps = last == LastColumn::Wraps;
    let wanted = if last == LastColumn::OneLine { ONE_LINE_WANTED } else { LAST_WANTED };
    let mut filled: Vec<usize> =
        (0..columns.len()).filter(|column| rows == 0 || columns[*column].filled > 0).collect();
    let fit = |shown: &[usize], moved: &[usize]| {
        let mut widths: Vec<usize> = shown.iter().map(|column| columns[*column].width()).collect();
        let added = moved.iter().map(|column| columns[*column].width() + columns[*column].heading + AROUND);
        let last = widths.last_mut().map_or(0, |last| {
            *last += added.sum::<usize>();
            *last
        });
        fit_widths(&mut widths, most, wraps);
        let is_narrow = widths.len() < shown.len()
            || widths.last().is_some_and(|it| *it < last.min(wanted))
            || total_width(&widths) > most;
        (widths, is_narrow)
    };
    let without_optional = |shown: &[usize]| -> Vec<usize> {
        shown.iter().copied().filter(|column| !columns[*column].is_optional).collect()
    };
    let (mut shown, mut moved) = (filled.clone(), Vec::new());
    let (mut widths, mut is_narrow) = fit(&shown, &moved);
    while is_narrow && !wraps {
        if last == LastColumn::OneLine {
            let fewer = without_optional(&shown);
            let (room, is_too_little) = fit(&fewer, &moved);
            if !is_too_little {
                (shown, widths, is_narrow) = (fewer, room, false);
                break;
            }
        }
        let others = shown.split_last().map_or(&[][..], |(_, others)| others).iter().copied();
        let rarest = others.min_by_key(|column| columns[*column].filled);
        let Some(rarest) = rarest.filter(|column| columns[*column].filled * RARE <= rows) else { break };
        shown.retain(|column| *column != rarest);
        moved.push(rarest);
        (widths, is_narrow) = fit(&shown, &moved);
    }
    if is_narrow && last == LastColumn::OneLine {
        (filled, shown) = (without_optional(&filled), without_optional(&shown));
        (widths, is_narrow) = fit(&shown, &moved);
    }
    if let [others @ .., last_column] = filled.as_slice()
        && is_narrow
        && last != LastColumn::OneLine
        && !others.is_empty()
        && most >= BELOW_FROM
    {
        return lay_out_with_last_below(columns, others.to_vec(), *last_column, most);
    }
    if widths.len() < shown.len() {
        // The last column is left out, and with it all that would move into it.
        (shown, moved) = (filled, Vec::new());
        (widths, _) = fit(&shown, &moved);
    }
    moved.sort_unstable();
    Layout { shown: shown.into_iter().zip(widths).collect(), moved, is_below: false }
}

/// Places the last column below the others. The rarest of the others move into it until the rest fits.
fn lay_out_with_last_below(
    columns: &[ColumnUse],
    mut others: Vec<usize>,
    last: usize,
    most: usize,
) -> Layout {
    let mut moved = Vec::new();
    loop {
        let mut widths: Vec<usize> = others.iter().map(|column| columns[*column].width()).collect();
        fit_widths(&mut widths, most, false);
        let fits = widths.len() == others.len() && total_width(&widths) <= most;
        let rarest = (1..others.len()).min_by_key(|place| columns[others[*place]].filled);
        match rarest.filter(|_| !fits) {
            Some(rarest) => moved.push(others.remove(rarest)),
            None => {
                moved.sort_unstable();
                let shown = others.into_iter().zip(widths).chain([(last, most - INDENT)]).collect();
                return Layout { shown, moved, is_below: true };
            }
        }
    }
}

/// Characters of a line.
fn total_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Shortens the widest columns behind the first until the line fits, but none below [`KEPT`]; then the last one, which goes if
/// nothing of use is left of it. A last column that `wraps` loses nothing, and is shortened first.
fn fit_widths(widths: &mut Vec<usize>, most: usize, wraps: bool) {
    let over = total_width(widths).saturating_sub(most);
    if let Some(last) = widths.last_mut().filter(|_| wraps) {
        *last = last.saturating_sub(over).max(LAST_WANTED.min(*last));
    }
    while total_width(widths) > most {
        // The first one of equals: reasons are at the end.
        let widest =
            widths.iter_mut().skip(1).rev().max_by_key(|width| **width).filter(|width| **width > KEPT);
        let Some(widest) = widest else { break };
        *widest -= 1;
    }
    let over = total_width(widths).saturating_sub(most);
    if let [_, .., last] = widths.as_mut_slice()
        && over > 0
    {
        *last = last.saturating_sub(over);
        if *last < LAST_KEPT {
            widths.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LastColumn::{Cut, OneLine, Wraps};
    use super::*;

    const NOTHING: Layout = Layout { shown: Vec::new(), moved: Vec::new(), is_below: false };

    fn column(heading: usize, longest: usize, filled: usize) -> ColumnUse {
        ColumnUse { heading, longest, filled, is_optional: false }
    }

    /// The columns of `madako machine list`, with repairs and next changes of so many of a hundred machines.
    fn machines(repairs: usize, next: usize) -> [ColumnUse; 9] {
        [
            column(7, 10, 100),
            column(4, 1, 100),
            ColumnUse { is_optional: true, ..column(4, 6, 100) },
            column(5, 9, 100),
            column(5, 5, 100),
            column(4, 13, 60),
            column(6, 18, repairs),
            column(4, 7, next),
            column(3, 70, 100),
        ]
    }

    fn shown_columns(layout: &Layout) -> Vec<usize> {
        layout.shown.iter().map(|(column, _)| *column).collect()
    }

    #[test]
    fn values_of_a_rare_column_move_into_the_reasons_until_they_have_room() {
        let layout = lay_out(&machines(1, 1), 100, Some(92), Cut);
        assert_eq!((shown_columns(&layout), &layout.moved), (vec![0, 1, 2, 3, 4, 5, 8], &vec![6, 7]));
        let widths: Vec<usize> = layout.shown.iter().map(|(_, width)| *width).collect();
        assert_eq!(total_width(&widths), 92);
        assert!(*widths.last().unwrap() >= LAST_WANTED, "{widths:?}");
        // Many repairs keep their column, and there is room for all on a wide terminal.
        let many = lay_out(&machines(50, 1), 100, Some(110), Cut);
        assert_eq!((shown_columns(&many), many.moved), (vec![0, 1, 2, 3, 4, 5, 6, 8], vec![7]));
        let wide = lay_out(&machines(1, 1), 100, Some(130), Cut);
        assert_eq!((wide.shown.len(), wide.moved.len()), (9, 0), "{wide:?}");
    }

    #[test]
    fn reasons_go_below_their_rows_where_too_little_room_is_beside_them() {
        let layout = lay_out(&machines(50, 50), 100, Some(80), Cut);
        assert_eq!((layout.is_below, &layout.moved), (true, &vec![6]), "{layout:?}");
        assert_eq!(layout.shown.last(), Some(&(8, 76)));
        // The names of operations stay whole.
        let operations = [column(5, 8, 3), column(6, 28, 3), column(6, 60, 3), column(3, 120, 3)];
        let layout = lay_out(&operations, 3, Some(80), Wraps);
        assert!(layout.is_below, "{layout:?}");
        assert_eq!(layout.shown[1], (1, 28));
    }

    #[test]
    fn rows_of_one_line_lose_optional_columns_and_the_end_of_the_reason() {
        let layout = lay_out(&machines(1, 1), 100, Some(75), OneLine);
        assert_eq!((shown_columns(&layout), &layout.moved), (vec![0, 1, 3, 4, 5, 8], &vec![6, 7]));
        let widths: Vec<usize> = layout.shown.iter().map(|(_, width)| *width).collect();
        assert_eq!((total_width(&widths), layout.is_below), (75, false), "{widths:?}");
        // Where many machines have repairs, these take the room of the reasons.
        let many = lay_out(&machines(50, 50), 100, Some(80), OneLine);
        assert_eq!((shown_columns(&many), many.moved), (vec![0, 1, 3, 4, 5, 6, 7], vec![]));
        assert!(!many.is_below);
        let wide = lay_out(&machines(1, 1), 100, Some(92), OneLine);
        assert_eq!(shown_columns(&wide), [0, 1, 2, 3, 4, 5, 7, 8], "there is room");
    }

    #[test]
    fn the_first_column_is_never_cut() {
        let columns = [column(4, 70, 9), column(5, 20, 9), column(3, 90, 9)];
        for last in [Cut, Wraps, OneLine] {
            for most in [30, 80] {
                assert_eq!(lay_out(&columns, 9, Some(most), last).shown[0], (0, 70), "{last:?} {most}");
            }
        }
    }

    #[test]
    fn a_column_without_values_is_left_out_before_another_one_moves() {
        let layout = lay_out(&machines(0, 40), 100, Some(101), Cut);
        assert_eq!((shown_columns(&layout), layout.moved), (vec![0, 1, 2, 3, 4, 5, 7, 8], vec![]));
        let all = lay_out(&machines(0, 0), 100, None, Cut);
        assert_eq!(all.shown.len(), 9, "there is room: {all:?}");
    }

    #[test]
    fn a_last_column_that_wraps_leaves_its_room_to_the_names() {
        let columns = [column(6, 40, 9), column(5, 7, 9), column(3, 90, 9)];
        let widths =
            |last| lay_out(&columns, 9, Some(81), last).shown.iter().map(|it| it.1).collect::<Vec<_>>();
        assert_eq!(widths(Wraps), [40, 7, 30]);
        assert_eq!(widths(Cut), [40, 7, 30]);
    }

    #[test]
    fn a_terminal_without_room_for_reasons_shows_the_names() {
        let columns = [column(4, 12, 8), column(3, 4, 1), column(3, 40, 8)];
        let layout = lay_out(&columns, 8, Some(16), Cut);
        assert_eq!(layout, Layout { shown: vec![(0, 12), (1, 4)], ..NOTHING });
        assert_eq!(lay_out(&[], 0, Some(3), Cut), NOTHING);
    }
}
