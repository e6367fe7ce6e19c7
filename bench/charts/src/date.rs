//! Days as dates, for what is written beside measured values.

/// The day of a time in seconds after 1970-01-01, as in 2026-11-29.
pub fn day(seconds: u64) -> String {
    let (year, month, day) = date(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // The years of this algorithm (Hinnant's) begin in March, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_453, (2025, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn days_are_written_with_all_digits() {
        assert_eq!(day(86_400 * 366), "1971-01-02");
        assert_eq!(day(86_400 * 367 - 1), "1971-01-02");
    }
}
