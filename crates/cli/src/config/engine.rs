//! The syntax of an engine process in an option: a name, and words of the form `key=value`.
//!
//! ```text
//! "cuda user=memferry-engine frames=all"        "example user=998 frames=1000,alice shortest=1048576 stall-ms=5000"
//! ```

use std::ffi::OsString;
use std::time::Duration;

use memferry_service::{EngineConfig, FramesOf};
use nix::unistd::User;
use toml::Value;

use super::kinds::Kind;

/// Default of `stall-ms`. `written` leaves it out.
fn default_stall() -> Duration {
    EngineConfig::new("", 0).stall
}

impl Kind for Vec<EngineConfig> {
    type Value = Self;
    const REPEATED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        parse_engine(text).map(|engine| vec![engine])
    }

    fn from_flag(texts: &[OsString]) -> Result<Self, String> {
        let utf8 = |text: &OsString| text.to_str().map(str::to_owned);
        let parse = |text: &OsString| {
            let text = utf8(text).ok_or_else(|| format!("'{}' is not UTF-8", text.display()))?;
            parse_engine(&text)
        };
        texts.iter().map(parse).collect()
    }

    fn from_file(value: &Value) -> Result<Self, String> {
        let wanted = "it has to be a list of strings, such as [\"example user=998 frames=all\"]";
        let list = value.as_array().ok_or_else(|| format!("is no list; {wanted}"))?;
        let texts =
            list.iter().map(|one| one.as_str().ok_or_else(|| format!("is no list of strings; {wanted}")));
        texts.map(|text| parse_engine(text?).map_err(|reason| format!("is invalid: {reason}"))).collect()
    }

    fn to_file(value: &Self) -> Value {
        Value::Array(value.iter().map(|engine| Value::String(written(engine))).collect())
    }
}

fn parse_engine(text: &str) -> Result<EngineConfig, String> {
    let mut words = text.split_whitespace();
    let name = words.next().ok_or("an engine needs a name")?;
    let mut user = None;
    let mut engine = EngineConfig::new(name, 0);
    let mut given = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            format!("'{word}' is not user=, frames=, exports=, shortest= or stall-ms= with a value")
        })?;
        if given.contains(&key) {
            return Err(format!("engine '{name}' has {key}= twice"));
        }
        given.push(key);
        match key {
            "user" => user = Some(user_id(value)?),
            "frames" => engine.frames_of = users(value)?,
            "exports" if value == "none" => engine.exports_to = FramesOf::Users(Vec::new()),
            "exports" => engine.exports_to = users(value)?,
            "shortest" => engine.shortest_bytes = Some(number(key, value)?),
            "stall-ms" => engine.stall = Duration::from_millis(number(key, value)?),
            _ => return Err(format!("'{key}' is not user, frames, exports, shortest or stall-ms")),
        }
    }
    engine.user = user.ok_or_else(|| format!("engine '{name}' needs user=UID, the user that it runs as"))?;
    Ok(engine)
}

fn users(value: &str) -> Result<FramesOf, String> {
    if value == "all" {
        return Ok(FramesOf::All);
    }
    Ok(FramesOf::Users(value.split(',').map(user_id).collect::<Result<_, _>>()?))
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{key}={value} is not a whole number"))
}

/// A user by number or by name.
fn user_id(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("there is no user '{text}'")),
        Err(error) => Err(format!("cannot look up the user '{text}': {error}; give its number")),
    }
}

fn written(engine: &EngineConfig) -> String {
    let EngineConfig { name, user, frames_of, exports_to, shortest_bytes, stall } = engine;
    let users = |users: &FramesOf| match users {
        FramesOf::All => "all".to_owned(),
        FramesOf::Users(users) => users.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    };
    let mut text = format!("{name} user={user} frames={}", users(frames_of));
    if *exports_to != FramesOf::Users(Vec::new()) {
        text += &format!(" exports={}", users(exports_to));
    }
    if let Some(shortest) = shortest_bytes {
        text += &format!(" shortest={shortest}");
    }
    if *stall != default_stall() {
        text += &format!(" stall-ms={}", stall.as_millis());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_written_as_it_was_read() {
        for text in [
            "example user=998 frames=all",
            "cuda-0 user=1 frames=1000,1001 shortest=1048576",
            "slow user=1 frames=0 stall-ms=60000",
            "gpu user=1 frames=all exports=all",
            "gpu user=1 frames=all exports=1000,7",
        ] {
            assert_eq!(written(&parse_engine(text).unwrap()), text);
        }
        assert_eq!(parse_engine("a user=root").unwrap().user, 0, "by name");
        assert_eq!(parse_engine("a  user=7 ").unwrap().frames_of, FramesOf::All, "the default");
        let none = parse_engine("a user=7 exports=none").unwrap();
        assert_eq!(none, parse_engine("a user=7").unwrap(), "the default");
    }

    #[test]
    fn mistakes_name_what_is_wrong() {
        for (text, part) in [
            ("", "needs a name"),
            ("a", "needs user=UID"),
            ("a user", "'user' is not user="),
            ("a user=nobody-of-that-name", "no user 'nobody-of-that-name'"),
            ("a user=1 frames=", "no user ''"),
            ("a user=1 frames=1,x-y-z", "no user 'x-y-z'"),
            ("a user=1 exports=nobody-of-that-name", "no user 'nobody-of-that-name'"),
            ("a user=1 shortest=-1", "shortest=-1"),
            ("a user=1 colour=red", "'colour'"),
            ("a user=1 frames=1 user=2", "user= twice"),
        ] {
            let error = parse_engine(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
