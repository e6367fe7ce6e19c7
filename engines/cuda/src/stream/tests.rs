//! The tables of kernels where the numbers of jobs wrap round.

use std::collections::BTreeSet;

use super::table_word;

#[test]
fn running_jobs_have_tables_apart() {
    for depth in [1, 2, 3, 5, 8, 63, 64] {
        for first in [0, 1, u32::MAX - 70, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let running = (0..depth).map(|index| first.wrapping_add(index));
            let tables: BTreeSet<usize> = running.map(|number| table_word(number, depth as usize)).collect();
            assert_eq!(tables.len(), depth as usize, "depth {depth} from job {first}");
        }
    }
}
