//! The kinds of option values: their syntax in a flag and in a file.
//!
//! ```text
//! text of a flag ─ from_flag ─┐
//! TOML of a file ─ from_file ─┴─► value ─► its field in Settings ─ to_file ─► TOML
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memferry_service::{Pinning, PolicyKind, PolicySettings, SchedulingClass};
use toml::Value;

use super::settings::{LogFormat, Settings};

/// The syntax of one kind of value. A kind written as text implements only [`Kind::parse`] and [`Kind::to_file`].
pub(super) trait Kind {
    type Value;
    /// Whether the flag may be repeated to give several values.
    const REPEATED: bool = false;

    fn parse(text: &str) -> Result<Self::Value, String>;

    /// Parses the values of a flag; several if the flag was repeated.
    fn from_flag(texts: &[OsString]) -> Result<Self::Value, String> {
        Self::parse(only(texts)?)
    }

    /// Parses the value in a file. The error continues a sentence that starts with the option's name.
    fn from_file(value: &Value) -> Result<Self::Value, String> {
        wrong(Self::parse(text(value)?))
    }

    fn to_file(value: &Self::Value) -> Value;

    /// The allowed names, if the kind has any.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }
}

/// The field of [`Settings`] that an option sets.
pub(super) struct Place<K: Kind>(pub(super) fn(&mut Settings) -> &mut K::Value);

/// A [`Place`] of any kind.
pub(super) trait Access: Sync {
    fn set_from_flag(&self, settings: &mut Settings, texts: &[OsString]) -> Result<(), String>;
    fn set_from_file(&self, settings: &mut Settings, value: &Value) -> Result<(), String>;
    fn to_file(&self, settings: &Settings) -> Value;
    fn choices(&self) -> Vec<&'static str>;
    fn is_repeated(&self) -> bool;
}

impl<K: Kind> Access for Place<K> {
    fn set_from_flag(&self, settings: &mut Settings, texts: &[OsString]) -> Result<(), String> {
        *(self.0)(settings) = K::from_flag(texts)?;
        Ok(())
    }

    fn set_from_file(&self, settings: &mut Settings, value: &Value) -> Result<(), String> {
        *(self.0)(settings) = K::from_file(value)?;
        Ok(())
    }

    fn to_file(&self, settings: &Settings) -> Value {
        K::to_file((self.0)(&mut settings.clone()))
    }

    fn choices(&self) -> Vec<&'static str> {
        K::choices()
    }

    fn is_repeated(&self) -> bool {
        K::REPEATED
    }
}

impl Kind for u32 {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text)
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        number(value)
    }

    fn to_file(value: &Self) -> Value {
        integer(*value)
    }
}

impl Kind for u64 {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text)
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        number(value)
    }

    fn to_file(value: &Self) -> Value {
        integer(*value)
    }
}

/// A duration in milliseconds.
pub(super) enum Milliseconds {}

impl Kind for Milliseconds {
    type Value = Duration;

    fn parse(text: &str) -> Result<Duration, String> {
        whole_number(text).map(Duration::from_millis)
    }

    fn from_file(value: &Value) -> Result<Duration, String> {
        number(value).map(Duration::from_millis)
    }

    fn to_file(value: &Duration) -> Value {
        integer(value.as_millis())
    }
}

/// A duration in microseconds.
pub(super) enum Microseconds {}

impl Kind for Microseconds {
    type Value = Duration;

    fn parse(text: &str) -> Result<Duration, String> {
        whole_number(text).map(Duration::from_micros)
    }

    fn from_file(value: &Value) -> Result<Duration, String> {
        number(value).map(Duration::from_micros)
    }

    fn to_file(value: &Duration) -> Value {
        integer(value.as_micros())
    }
}

impl Kind for bool {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("'{text}' is neither true nor false"))
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| expected("true or false, without quotes", value))
    }

    fn to_file(value: &Self) -> Value {
        Value::Boolean(*value)
    }
}

/// The path of a socket.
impl Kind for PathBuf {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_flag(&[text.into()])
    }

    /// A path in a flag need not be UTF-8.
    fn from_flag(texts: &[OsString]) -> Result<Self, String> {
        match texts {
            [path] if !path.is_empty() => fit_for_a_socket(path.into()),
            _ => Err("a path is missing".to_owned()),
        }
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        match text(value)? {
            "" => Err("is empty, it has to be a path such as \"/run/memferry.sock\"".to_owned()),
            path => wrong(fit_for_a_socket(path.into())),
        }
    }

    fn to_file(value: &Self) -> Value {
        Value::String(value.display().to_string())
    }
}

/// sockaddr_un(7) has room for 107 bytes and a NUL.
fn fit_for_a_socket(path: PathBuf) -> Result<PathBuf, String> {
    match SocketAddr::from_pathname(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err("the path of a socket has at most 107 bytes, and none is zero".to_owned()),
    }
}

/// Permissions of a file, three octal digits.
pub(super) enum Permissions {}

impl Kind for Permissions {
    type Value = u32;

    fn parse(text: &str) -> Result<u32, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode @ ..=0o777) => Ok(mode),
            Ok(_) => Err(format!("{text} is not a file permission; the largest is 777")),
            Err(_) => Err(format!("'{text}' is not an octal number")),
        }
    }

    fn from_file(value: &Value) -> Result<u32, String> {
        let no_text = || expected("an octal number in quotes, such as \"660\"", value);
        wrong(Self::parse(value.as_str().ok_or_else(no_text)?))
    }

    fn to_file(value: &u32) -> Value {
        Value::String(format!("{value:o}"))
    }
}

/// A device by its absolute path, or "off".
pub(super) enum Device {}

impl Kind for Device {
    type Value = Option<PathBuf>;

    fn parse(text: &str) -> Result<Option<PathBuf>, String> {
        match text {
            "off" => Ok(None),
            path if Path::new(path).is_absolute() => Ok(Some(path.into())),
            _ => Err(format!("'{text}' is neither \"off\" nor an absolute path such as \"/dev/memferry\"")),
        }
    }

    fn to_file(value: &Option<PathBuf>) -> Value {
        Value::String(value.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string()))
    }
}

/// A value chosen by its name.
pub(super) trait Named: Copy + PartialEq + 'static {
    /// The noun for error messages.
    const WHAT: &'static str;

    fn all() -> Vec<(Self, &'static str)>;
}

impl Named for Pinning {
    const WHAT: &'static str = "way to pin workers";

    fn all() -> Vec<(Self, &'static str)> {
        Self::ALL.to_vec()
    }
}

impl Named for SchedulingClass {
    const WHAT: &'static str = "scheduling class";

    fn all() -> Vec<(Self, &'static str)> {
        Self::ALL.to_vec()
    }
}

impl Named for PolicyKind {
    const WHAT: &'static str = "policy";

    fn all() -> Vec<(Self, &'static str)> {
        Self::ALL.map(|kind| (kind, kind.name())).to_vec()
    }
}

impl Named for LogFormat {
    const WHAT: &'static str = "log format";

    fn all() -> Vec<(Self, &'static str)> {
        vec![(Self::Text, "text"), (Self::Json, "json")]
    }
}

impl<T: Named> Kind for T {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        let all = Self::all();
        all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
            format!("there is no {} '{text}'; choose one of {}", T::WHAT, names.join(", "))
        })
    }

    fn to_file(value: &Self) -> Value {
        let name = Self::all().into_iter().find(|(one, _)| one == value).map_or("", |(_, name)| name);
        Value::String(name.to_owned())
    }

    fn choices() -> Vec<&'static str> {
        Self::all().into_iter().map(|(_, name)| name).collect()
    }
}

/// The policy of one class, or "none".
pub(super) enum ClassPolicy {}

impl Kind for ClassPolicy {
    type Value = Option<PolicyKind>;

    fn parse(text: &str) -> Result<Option<PolicyKind>, String> {
        if text == "none" { Ok(None) } else { PolicyKind::parse(text).map(Some) }
    }

    fn to_file(value: &Option<PolicyKind>) -> Value {
        Value::String(value.map_or("none", PolicyKind::name).to_owned())
    }

    /// Some policies apply only to all classes together.
    fn choices() -> Vec<&'static str> {
        let for_one = |kind: &PolicyKind| {
            PolicySettings { classes: [Some(*kind), None, None], ..PolicySettings::default() }.check().is_ok()
        };
        let kinds = PolicyKind::ALL.into_iter().filter(for_one).map(PolicyKind::name);
        std::iter::once("none").chain(kinds).collect()
    }
}

/// User ids: a list of numbers in a file, a repeated flag on the command line.
impl Kind for Vec<u32> {
    type Value = Self;
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        whole_number(text).map(|user| vec![user])
    }

    fn from_flag(texts: &[OsString]) -> Result<Self, String> {
        texts.iter().map(|text| whole_number(utf8(text)?)).collect()
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        let wanted = "a list of whole numbers, such as [1000, 1001]";
        let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
        list.iter().map(|one| number(one).map_err(|reason| format!("holds a value that {reason}"))).collect()
    }

    fn to_file(value: &Self) -> Value {
        Value::Array(value.iter().map(|number| integer(*number)).collect())
    }
}

/// Weights of the classes low, normal and high.
impl Kind for [u32; 3] {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u32>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
        let three = numbers.and_then(|numbers| numbers.try_into().ok());
        three.ok_or_else(|| format!("'{text}' is not three weights, such as 1,2,4"))
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        let wanted = "a list of three whole numbers, such as [1, 2, 4]";
        let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
        let numbers = list.iter().map(number).collect::<Result<Vec<u32>, _>>();
        let numbers = numbers.map_err(|reason| format!("contains a value that {reason}"))?;
        let count = numbers.len();
        numbers.try_into().map_err(|_| format!("has {count} values, it has to be {wanted}"))
    }

    fn to_file(value: &Self) -> Value {
        Value::Array(value.iter().map(|number| integer(*number)).collect())
    }
}

/// Weights of individual users.
impl Kind for BTreeMap<u32, u32> {
    type Value = Self;
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        user_weight(text).map(|weight| Self::from([weight]))
    }

    fn from_flag(texts: &[OsString]) -> Result<Self, String> {
        each_once(texts.iter().map(|text| user_weight(utf8(text)?)).collect::<Result<_, _>>()?)
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        let wanted = "a list of strings, such as [\"1000=3\"]";
        let list = value.as_array().ok_or_else(|| expected(wanted, value))?;
        let weights = list.iter().map(|one| text(one).and_then(|one| wrong(user_weight(one))));
        wrong(each_once(weights.collect::<Result<_, _>>()?))
    }

    fn to_file(value: &Self) -> Value {
        Value::Array(value.iter().map(|(user, weight)| Value::String(format!("{user}={weight}"))).collect())
    }
}

/// Of two weights of a user one is a mistake.
fn each_once(weights: Vec<(u32, u32)>) -> Result<BTreeMap<u32, u32>, String> {
    let mut users = BTreeMap::new();
    for (user, weight) in weights {
        if users.insert(user, weight).is_some() {
            return Err(format!("user {user} has two weights"));
        }
    }
    Ok(users)
}

fn user_weight(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('=').and_then(|(user, weight)| Some((user.parse().ok()?, weight.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is not a user and a weight, such as 1000=3"))
}

/// The value of a flag that is not repeated.
fn only(texts: &[OsString]) -> Result<&str, String> {
    utf8(texts.first().ok_or("a value is missing")?)
}

fn utf8(text: &OsString) -> Result<&str, String> {
    text.to_str().ok_or_else(|| format!("'{}' is not UTF-8", text.display()))
}

fn whole_number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number: u64 = text.parse().map_err(|_| format!("'{text}' is not a whole number or is too large"))?;
    T::try_from(number).map_err(|_| format!("{number} is too large"))
}

fn number<T: TryFrom<i64>>(value: &Value) -> Result<T, String> {
    let whole = value.as_integer().ok_or_else(|| expected("a whole number without quotes", value))?;
    T::try_from(whole).map_err(|_| match whole {
        ..0 => format!("is {whole}, it has to be at least 0"),
        _ => format!("is {whole}, which is too large"),
    })
}

/// Numbers above `i64::MAX` are clamped: TOML has no larger ones.
fn integer(number: impl TryInto<i64>) -> Value {
    Value::Integer(number.try_into().unwrap_or(i64::MAX))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| expected("a string in quotes", value))
}

/// Prefixes the error so that it continues a sentence.
fn wrong<T>(result: Result<T, String>) -> Result<T, String> {
    result.map_err(|reason| format!("is invalid: {reason}"))
}

fn expected(what: &str, value: &Value) -> String {
    let is = match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "a whole number",
        Value::Float(number) if number.is_infinite() => "a number that is too large",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    };
    format!("is {is}, it has to be {what}")
}
