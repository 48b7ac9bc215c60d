//! Statement texts for many rows at once. They come in few sizes, so that prepared statements are reused.

use std::fmt::Write as _;

/// The sizes of lists that may repeat an element.
const PADDED: [usize; 7] = [1, 4, 16, 64, 256, 512, 1024];
/// The largest number of rows in one INSERT; up to eight of them every size has its own text.
const ROWS: [usize; 3] = [64, 16, 8];

/// `items` in slices of a known size each, the last one filled up by repeating its last element: harmless
/// in an IN list, and in an update that sets the same row twice to the same values.
pub(crate) fn pad<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    items
        .chunks(1024)
        .map(|chunk| {
            let size = PADDED
                .into_iter()
                .find(|size| *size >= chunk.len())
                .unwrap_or(1024);
            let mut padded = chunk.to_vec();
            if let Some(last) = chunk.last() {
                padded.resize(size, last.clone());
            }
            padded
        })
        .collect()
}

/// `items` in slices of a known size each, none repeated.
pub(crate) fn rows_of<T>(mut items: &[T]) -> Vec<&[T]> {
    let mut slices = Vec::new();
    while !items.is_empty() {
        let size = ROWS
            .into_iter()
            .find(|size| *size <= items.len())
            .unwrap_or(items.len());
        let (slice, rest) = items.split_at(size);
        slices.push(slice);
        items = rest;
    }
    slices
}

/// `$1, $2, …`
pub(crate) fn in_list(count: usize) -> String {
    in_list_from(1, count)
}

/// `$first, …`, `count` of them.
pub(crate) fn in_list_from(first: usize, count: usize) -> String {
    let mut text = String::with_capacity(count * 5);
    for n in first..first + count {
        // Writing to a String does not fail.
        let _ = write!(text, "{}${n}", if n == first { "" } else { ", " });
    }
    text
}

/// `($1, $2), ($3, $4), …`
pub(crate) fn values_table(rows: usize, columns: usize) -> String {
    let mut text = String::with_capacity(rows * columns * 6);
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns {
            let n = row * columns + column + 1;
            let _ = write!(text, "{}${n}", if column == 0 { "" } else { ", " });
        }
        text.push(')');
    }
    text
}
