//! Schedules of faults: a text, one fault a line.
//!
//! ```text
//! # an engine channel, one or several of its descriptors, a fault
//! channel 1   descriptor 100           halt read-data
//! channel any descriptor 5..20         slow 2ms
//! channel 0   descriptor 50.. every 10 lose completion
//! channel 2   descriptor 7             stick until reset
//! ```
//!
//! Descriptors are counted from 1 for each engine channel, in the order in which it fetches them, since the device was last reset as a
//! whole (see [`Planned`]: one that is fetched twice counts twice). Faults: `halt` with the name of an error; `lose completion`, `lose interrupt`; `slow` with a time; `stick for` a
//! time, `stick until reset`, `stick forever`. Times have a unit: `us`, `ms` or `s`.

use std::time::Duration;

use memferry_models::ioat::{Planned, PlannedFault, Until};
use memferry_registers::ioat::Chanerr;
use thiserror::Error;

/// Limit of a schedule's faults.
pub const MAXIMUM: usize = 1000;

const LONGEST: Duration = Duration::from_secs(3600);

const FAULTS: &str = "halt ERROR, lose completion, lose interrupt, slow TIME, stick for TIME, stick until reset or stick forever";

/// A mistake in a schedule, with its place and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}, column {column}: {found}; {remedy}")]
pub struct ScheduleError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The text at this place.
    pub found: String,
    pub remedy: String,
}

/// Errors that a channel can halt with: their names, and bits of CHANERR.
const ERRORS: [(&str, u32); 17] = [
    ("source-address", 0),
    ("destination-address", 1),
    ("next-address", 2),
    ("descriptor", 3),
    ("chain-address", 4),
    ("command", 5),
    ("chipset-integrity", 6),
    ("engine-integrity", 7),
    ("read-data", 8),
    ("write-data", 9),
    ("control", 10),
    ("length", 11),
    ("completion-address", 12),
    ("interrupt-configuration", 13),
    ("unaffiliated", 15),
    ("xor", 16),
    ("descriptor-count", 18),
];

/// Parses a schedule for a device with this number of channels.
///
/// # Errors
/// [`ScheduleError`], for the first mistake.
pub fn parse(text: &str, channels: u8) -> Result<Vec<Planned>, ScheduleError> {
    let mut plan = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let mut words = Words::new(index + 1, text);
        if words.next.is_none() {
            continue;
        }
        if plan.len() == MAXIMUM {
            return Err(words.error(&format!("a schedule has at most {MAXIMUM} faults")));
        }
        plan.push(fault_line(&mut words, channels)?);
    }
    Ok(plan)
}

/// As [`parse`], from bytes that may be no text.
///
/// # Errors
/// [`ScheduleError`], for the first mistake.
pub fn parse_bytes(bytes: &[u8], channels: u8) -> Result<Vec<Planned>, ScheduleError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text, channels),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
            let byte = bytes.get(error.valid_up_to()).copied().unwrap_or(0);
            let found = format!("byte {byte:#04x} is no UTF-8");
            Err(ScheduleError { line, column, found, remedy: "write the schedule as a text file".to_owned() })
        }
    }
}

fn fault_line(words: &mut Words<'_>, channels: u8) -> Result<Planned, ScheduleError> {
    words.keyword("channel", "begin the line with: channel")?;
    let last = channels.saturating_sub(1);
    let remedy = format!("name a channel from 0 to {last}, or any");
    let channel = match words.next_text() {
        Some("any") => {
            words.advance();
            None
        }
        _ => Some(words.number(0, last.into(), &remedy)? as usize),
    };
    words.keyword("descriptor", "go on with: descriptor")?;
    let (first, last) = words.range()?;
    let step = match words.next_text() {
        Some("every") => {
            words.advance();
            words.number(1, u64::MAX, "name a number from 1")?
        }
        _ => 1,
    };
    let fault = fault(words)?;
    match words.next {
        None => Ok(Planned { channel, first, last, step, fault }),
        Some(_) => Err(words.error("end the line here, or begin a comment with #")),
    }
}

fn fault(words: &mut Words<'_>) -> Result<PlannedFault, ScheduleError> {
    let remedy = format!("name a fault: {FAULTS}");
    let kind = words.word(&["halt", "lose", "slow", "stick"], &remedy)?;
    match kind {
        "halt" => words.chanerr().map(PlannedFault::Halt),
        "lose" => match words.word(&["completion", "interrupt"], "lose completion, or lose interrupt")? {
            "completion" => Ok(PlannedFault::LoseCompletion),
            _ => Ok(PlannedFault::LoseInterrupt),
        },
        "slow" => words.time().map(PlannedFault::Slow),
        _ => {
            let remedy = "stick for TIME, stick until reset, or stick forever";
            let until = match words.word(&["for", "until", "forever"], remedy)? {
                "for" => Until::Elapsed(words.time()?),
                "until" => words.keyword("reset", "stick until reset").map(|()| Until::Reset)?,
                _ => Until::Never,
            };
            Ok(PlannedFault::Stick(until))
        }
    }
}

/// The words of a line, with their columns.
struct Words<'a> {
    line: usize,
    text: &'a str,
    /// The next word, as its first byte in `text` and itself.
    next: Option<(usize, &'a str)>,
    /// First byte behind the next word.
    after: usize,
}

impl<'a> Words<'a> {
    fn new(line: usize, text: &'a str) -> Self {
        let text = text.split('#').next().unwrap_or(text);
        let mut words = Self { line, text, next: None, after: 0 };
        words.advance();
        words
    }

    fn advance(&mut self) {
        let rest = &self.text[self.after..];
        let begin = rest.find(|character: char| !character.is_whitespace());
        self.next = begin.map(|begin| {
            let word = rest[begin..].split(char::is_whitespace).next().unwrap_or_default();
            (self.after + begin, word)
        });
        self.after = self.next.map_or(self.text.len(), |(begin, word)| begin + word.len());
    }

    fn next_text(&self) -> Option<&'a str> {
        self.next.map(|(_, word)| word)
    }

    /// A mistake at the next word.
    fn error(&self, remedy: &str) -> ScheduleError {
        let begin = self.next.map_or(self.text.trim_end().len(), |(begin, _)| begin);
        let column = self.text[..begin].chars().count() + 1;
        let found =
            self.next.map_or("the line ends".to_owned(), |(_, word)| format!("{word:?} is not expected"));
        ScheduleError { line: self.line, column, found, remedy: remedy.to_owned() }
    }

    fn word(&mut self, choices: &[&'static str], remedy: &str) -> Result<&'static str, ScheduleError> {
        let found = choices.iter().find(|choice| self.next_text() == Some(choice));
        let found = found.ok_or_else(|| self.error(remedy))?;
        self.advance();
        Ok(found)
    }

    fn keyword(&mut self, word: &'static str, remedy: &str) -> Result<(), ScheduleError> {
        self.word(&[word], remedy).map(|_| ())
    }

    fn number(&mut self, minimum: u64, maximum: u64, remedy: &str) -> Result<u64, ScheduleError> {
        let number = self.next_text().and_then(|word| word.parse().ok());
        let number = number.filter(|number| (minimum..=maximum).contains(number));
        let number = number.ok_or_else(|| self.error(remedy))?;
        self.advance();
        Ok(number)
    }

    /// `5`, `5..20` or `5..`.
    fn range(&mut self) -> Result<(u64, u64), ScheduleError> {
        let parsed = self.next_text().and_then(|word| {
            let number = |text: &str| text.parse::<u64>().ok();
            match word.split_once("..") {
                None => number(word).map(|only| (only, only)),
                Some((first, "")) => number(first).map(|first| (first, u64::MAX)),
                Some((first, last)) => Some((number(first)?, number(last)?)),
            }
        });
        let range = parsed.filter(|(first, last)| *first >= 1 && first <= last);
        let remedy = "name a descriptor from 1, as 5, 5..20 (both included) or 5..";
        let range = range.ok_or_else(|| self.error(remedy))?;
        self.advance();
        Ok(range)
    }

    fn time(&mut self) -> Result<Duration, ScheduleError> {
        let units: [(&str, u64); 3] = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
        let parsed = self.next_text().and_then(|word| {
            let (number, unit) = word.split_at(word.find(|character: char| !character.is_ascii_digit())?);
            let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
            number.parse::<u64>().ok()?.checked_mul(*factor).map(Duration::from_micros)
        });
        let time = parsed.filter(|time| *time <= LONGEST);
        let time = time
            .ok_or_else(|| self.error("name a time of at most an hour with its unit, as 200us, 2ms or 1s"))?;
        self.advance();
        Ok(time)
    }

    fn chanerr(&mut self) -> Result<Chanerr, ScheduleError> {
        let found = ERRORS.iter().find(|(name, _)| self.next_text() == Some(name));
        let Some((_, bit)) = found else {
            let names: Vec<&str> = ERRORS.iter().map(|(name, _)| *name).collect();
            return Err(self.error(&format!("name an error: {}", names.join(", "))));
        };
        self.advance();
        Ok(Chanerr::from_bits(1 << bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_fault() {
        let text = "\
            # all there are\n\
            channel 1 descriptor 100 halt read-data   # as a bad address\n\
            \n\
            channel any descriptor 5..20 slow 2ms\n\
            channel 0\tdescriptor 50.. every 10 lose completion\n\
            channel 3 descriptor 1 lose interrupt\n\
            channel 2 descriptor 7 stick until reset\n\
            channel 2 descriptor 8 stick for 300us\n\
            channel 2 descriptor 9 stick forever\n";
        let at = |channel, first, last, step, fault| Planned { channel, first, last, step, fault };
        let expected = [
            at(Some(1), 100, 100, 1, PlannedFault::Halt(Chanerr::new().with_read_data(true))),
            at(None, 5, 20, 1, PlannedFault::Slow(Duration::from_millis(2))),
            at(Some(0), 50, u64::MAX, 10, PlannedFault::LoseCompletion),
            at(Some(3), 1, 1, 1, PlannedFault::LoseInterrupt),
            at(Some(2), 7, 7, 1, PlannedFault::Stick(Until::Reset)),
            at(Some(2), 8, 8, 1, PlannedFault::Stick(Until::Elapsed(Duration::from_micros(300)))),
            at(Some(2), 9, 9, 1, PlannedFault::Stick(Until::Never)),
        ];
        assert_eq!(parse(text, 4).unwrap(), expected);
        assert_eq!(parse("", 4), Ok(Vec::new()));
    }

    #[test]
    fn names_of_errors_are_their_bits() {
        let text = |name: &str| parse(&format!("channel 0 descriptor 1 halt {name}"), 4).unwrap()[0].fault;
        let bit = |error| PlannedFault::Halt(error);
        assert_eq!(text("xor"), bit(Chanerr::new().with_xor_p_or_crc(true)));
        assert_eq!(text("descriptor-count"), bit(Chanerr::new().with_descriptor_count(true)));
        assert_eq!(text("unaffiliated"), bit(Chanerr::new().with_unaffiliated(true)));
        assert_eq!(text("completion-address"), bit(Chanerr::new().with_completion_address(true)));
    }

    #[test]
    fn mistakes_have_place_and_remedy() {
        let cases = [
            ("chanel 0", 1, "\"chanel\" is not expected", "begin the line with: channel"),
            (
                "channel 4 descriptor 1 slow 1s",
                9,
                "\"4\" is not expected",
                "name a channel from 0 to 3, or any",
            ),
            ("channel", 8, "the line ends", "name a channel from 0 to 3, or any"),
            ("channel 0 descriptor 0 slow 1s", 22, "\"0\" is not expected", "name a descriptor from 1"),
            ("channel 0 descriptor 9..3 slow 1s", 22, "\"9..3\" is not expected", "name a descriptor from 1"),
            ("channel 0 descriptor 1 every 0 slow 1s", 30, "\"0\" is not expected", "a number from 1"),
            ("channel 0 descriptor 1", 23, "the line ends", "name a fault: halt ERROR"),
            ("channel 0 descriptor 1 halt", 28, "the line ends", "name an error: source-address"),
            ("channel 0 descriptor 1 slow 1", 29, "\"1\" is not expected", "with its unit"),
            ("channel 0 descriptor 1 slow 9999999s", 29, "\"9999999s\" is not expected", "at most an hour"),
            ("channel 0 descriptor 1 stick", 29, "the line ends", "stick until reset"),
            ("channel 0 descriptor 1 lose all", 29, "\"all\" is not expected", "lose completion, or"),
            ("  channel 0 descriptor 1 slow 1s ü", 34, "\"ü\" is not expected", "end the line here"),
        ];
        for (text, column, found, remedy) in cases {
            let error = parse(&format!("# before\n{text}\n"), 4).unwrap_err();
            assert_eq!((error.line, error.column, error.found.as_str()), (2, column, found), "{text}");
            assert!(error.remedy.contains(remedy), "{text}: {error}");
        }
        let error = parse_bytes(b"\nchannel \xFF", 4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2, column 9: byte 0xff is no UTF-8; write the schedule as a text file"
        );
    }

    #[test]
    fn a_schedule_has_an_end() {
        let lines = "channel 0 descriptor 1 slow 1s\n".repeat(MAXIMUM);
        assert_eq!(parse(&lines, 1).unwrap().len(), MAXIMUM);
        let error = parse(&format!("{lines}channel 0 descriptor 1 slow 1s"), 1).unwrap_err();
        assert_eq!((error.line, error.column), (MAXIMUM + 1, 1));
    }
}
