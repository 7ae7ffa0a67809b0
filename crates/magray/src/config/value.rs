//! The kinds of settings and the values they take: one reader for files, variables and flags alike.
//! Does not know which settings exist or where a value came from.

use std::{fmt, path::PathBuf};

use magray_core::{DeviceChoice, DeviceName, UnknownDevice};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Switch,
    /// A whole number in this range, both ends included.
    Whole {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
    },
    /// A number in this range, both ends included.
    Between {
        min: f64,
        max: f64,
    },
    Choice(&'static [Choice]),
    Choices(&'static [Choice]),
    /// Several whole numbers from 0 on.
    Wholes,
    /// Any text but the empty one.
    Text,
    Url,
    Path,
    /// GPUs as the CUDA driver names them: numbers, UUIDs, `all` or `none`.
    VisibleDevices,
    Device,
    /// A table of names, each with the device it is placed on.
    Placement,
    /// A device that something is placed on.
    PlacedOn,
    Names,
    /// A table of names, each with one of these.
    NamedChoices(&'static [Choice]),
    /// A table of names, each with a number of seconds or `never`.
    NamedSeconds,
}

pub(crate) const NEVER: &str = "never";

/// A choice and its other spellings.
pub(crate) type Choice = (&'static str, &'static [&'static str]);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Nothing chosen: magray decides, or there is no limit.
    Unset,
    Switch(bool),
    Whole(i64),
    Number(f64),
    Text(String),
    Path(PathBuf),
    List(Vec<String>),
    Table(Vec<(String, String)>),
}

impl Kind {
    /// Reads a value written as one text, as variables and flags are; `None` when it is not allowed.
    pub(crate) fn read(&self, raw: &str) -> Option<Value> {
        let text = raw.trim();
        match *self {
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(Value::Switch(true)),
                "false" | "no" | "off" | "0" => Some(Value::Switch(false)),
                _ => None,
            },
            Self::Whole { min, max } => {
                let number: i64 = text.parse().ok()?;
                (min..=max).contains(&number).then_some(Value::Whole(number))
            }
            Self::Number { min } => {
                let number: f64 = text.parse().ok()?;
                (number.is_finite() && number >= min).then_some(Value::Number(number))
            }
            Self::Between { min, max } => {
                let number: f64 = text.parse().ok()?;
                (min..=max).contains(&number).then_some(Value::Number(number))
            }
            Self::PlacedOn => assigned_device(text, 0).map(|_| Value::Text(text.to_owned())),
            Self::Choice(choices) => known_choice(choices, text).map(Value::Text),
            Self::Choices(_) | Self::Wholes | Self::Names => {
                self.read_list(text.split(',').filter(|item| !item.trim().is_empty()))
            }
            Self::Text => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
            Self::Url => {
                let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
                let host = rest.split('/').next().unwrap_or_default();
                let is_sound = !host.is_empty() && !text.contains(char::is_whitespace);
                is_sound.then(|| Value::Text(text.to_owned()))
            }
            // A shell expands `~` before a program sees it; in a file it is expanded here.
            Self::Path => (!text.is_empty() && !text.starts_with('~')).then(|| Value::Path(PathBuf::from(text))),
            Self::VisibleDevices => visible_devices(text),
            Self::Device => device(text),
            Self::Placement => None,
            Self::NamedChoices(_) | Self::NamedSeconds => {
                let rows = text.split(',').filter(|row| !row.trim().is_empty());
                // A name may hold the sign, a value does not.
                let row = |row: &str| row.rsplit_once('=').and_then(|(name, value)| self.read_row(name, value));
                rows.map(row).collect::<Option<Vec<_>>>().map(Value::Table)
            }
        }
    }

    pub(crate) fn read_list<'a>(&self, items: impl Iterator<Item = &'a str>) -> Option<Value> {
        let item = |item: &str| match *self {
            Self::Choices(choices) => known_choice(choices, item.trim()),
            Self::Wholes => item.trim().parse::<u32>().ok().map(|number| number.to_string()),
            Self::Names => Some(item.trim().to_owned()).filter(|name| is_name(name)),
            _ => None,
        };
        match *self {
            Self::VisibleDevices => visible_devices(&items.collect::<Vec<_>>().join(",")),
            _ => items.map(item).collect::<Option<Vec<_>>>().map(Value::List),
        }
    }

    pub(crate) fn read_row(&self, name: &str, value: &str) -> Option<(String, String)> {
        let (name, value) = (name.trim(), value.trim());
        let value = match *self {
            Self::Placement => assigned_device(value, 0).map(|_| value.to_owned()),
            Self::NamedChoices(choices) => known_choice(choices, value),
            Self::NamedSeconds => match value.to_ascii_lowercase().as_str() {
                NEVER => Some(NEVER.to_owned()),
                number => number.parse::<u32>().ok().map(|seconds| seconds.to_string()),
            },
            _ => None,
        };
        value.filter(|_| is_name(name)).map(|value| (name.to_owned(), value))
    }

    /// Whether an empty text is a value of its own and not the absence of one.
    pub(crate) fn takes_empty(&self) -> bool {
        matches!(self, Self::VisibleDevices)
    }

    /// Whether a file gives this setting as a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Placement | Self::NamedChoices(_) | Self::NamedSeconds)
    }
}

/// What is allowed, for messages and for the documentation.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |choices: &[Choice]| choices.iter().map(|(choice, _)| *choice).collect::<Vec<_>>().join(", ");
        match self {
            Self::Switch => f.write_str("true or false"),
            Self::Whole { min, max: i64::MAX } => write!(f, "a whole number, {min} or more"),
            Self::Whole { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Number { min } => write!(f, "a number, {min} or more"),
            Self::Between { min, max } => write!(f, "a number from {min} to {max}"),
            Self::Choice(choices) => write!(f, "one of {}", listed(choices)),
            Self::Choices(choices) => write!(f, "a list of {}", listed(choices)),
            Self::Wholes => f.write_str("a list of whole numbers"),
            Self::Text => f.write_str("a text"),
            Self::Url => f.write_str("an address that starts with http:// or https://"),
            Self::Path => f.write_str("a path (a leading ~ is not expanded)"),
            Self::VisibleDevices => f.write_str("a list of GPU numbers or UUIDs, all, or none"),
            Self::Device => f.write_str(UnknownDevice::KNOWN),
            Self::Placement => f.write_str("a table of names, each with a device: cpu, cuda or cuda:NUMBER"),
            Self::PlacedOn => f.write_str("a device: cpu, cuda or cuda:NUMBER"),
            Self::Names => f.write_str("a list of names"),
            Self::NamedChoices(choices) => {
                write!(f, "a table of names (or NAME=WORD,..), each with one of {}", listed(choices))
            }
            Self::NamedSeconds => {
                write!(f, "a table of names (or NAME=SECONDS,..), each with a whole number of seconds or {NEVER}")
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Switch(on) => write!(f, "{on}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::List(items) => write!(f, "[{}]", items.join(", ")),
            Self::Table(rows) => {
                let rows: Vec<String> = rows.iter().map(|(name, value)| format!("{name} = {value}")).collect();
                write!(f, "{{{}}}", rows.join(", "))
            }
        }
    }
}

impl Value {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Unset => serde_json::Value::Null,
            Self::Switch(on) => (*on).into(),
            Self::Whole(number) => (*number).into(),
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Path(path) => path.display().to_string().into(),
            Self::List(items) => items.clone().into(),
            Self::Table(rows) => rows.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }
}

fn known_choice(choices: &[Choice], text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let known = choices.iter().find(|(choice, others)| *choice == text || others.contains(&text.as_str()));
    known.map(|(choice, _)| (*choice).to_owned())
}

/// A device by its usual name. `prefer-gpu` says more than `auto`, so it is kept.
fn device(text: &str) -> Option<Value> {
    let choice: DeviceChoice = text.parse().ok()?;
    let prefers = text.replace('_', "-").eq_ignore_ascii_case(DeviceChoice::PREFER_GPU);
    Some(Value::Text(if prefers { DeviceChoice::PREFER_GPU.to_owned() } else { choice.to_string() }))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

/// A device that a model can be assigned to; `gpu` is the one without a number.
pub(super) fn assigned_device(word: &str, gpu: usize) -> Option<DeviceName> {
    match word.split_once(':') {
        None if word == "cpu" => Some(DeviceName::Cpu),
        None if word == "cuda" => Some(DeviceName::Cuda(gpu)),
        Some(("cuda", index)) => index.parse().ok().map(DeviceName::Cuda),
        // What tests have in place of a GPU.
        Some(("sim", index)) => index.parse().ok().map(DeviceName::Simulated),
        _ => None,
    }
}

/// The forms that the CUDA driver and the container runtime accept, and the one that batch systems write for "none".
fn visible_devices(text: &str) -> Option<Value> {
    match text.to_ascii_lowercase().as_str() {
        "all" => return Some(Value::Text("all".to_owned())),
        "" | "none" | "void" | "-1" | "nodevfiles" => return Some(Value::Text("none".to_owned())),
        _ => {}
    }
    let is_device =
        |item: &str| item.parse::<u32>().is_ok() || ["GPU-", "MIG-"].iter().any(|start| item.starts_with(start));
    let items: Vec<&str> = text.split(',').map(str::trim).collect();
    items.iter().all(|item| is_device(item)).then(|| Value::Text(items.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_takes_its_own_and_refuses_the_rest() {
        const CHOICES: &[Choice] = &[("all", &["true"]), ("none", &[])];
        let cases: [(Kind, &[&str], &[&str]); 13] = [
            (Kind::Between { min: 0.0, max: 1.0 }, &["0", "0.5", "1"], &["", "-0.1", "1.1", "nan", "inf"]),
            (Kind::PlacedOn, &["cpu", "cuda", "cuda:1"], &["", "gpu", "cuda:x", "moon"]),
            (Kind::Names, &["", "a", "org/name, b"], &["a\u{7}"]),
            (Kind::NamedChoices(CHOICES), &["", "a=all", "org/a = TRUE, b=none"], &["a", "a=some", "=all", "a=all,b"]),
            (Kind::NamedSeconds, &["", "a=0", "a=5, b=Never"], &["a", "5", "a=-1", "a=1.5", "a=soon", "=5"]),
            (Kind::Switch, &["true", "OFF", "1", " yes "], &["", "maybe", "2"]),
            (Kind::Whole { min: 1, max: 8 }, &["1", "8"], &["0", "9", "1.5", "x", "99999999999999999999"]),
            (Kind::Number { min: 0.0 }, &["0", "1.5", "1e3"], &["-1", "nan", "inf", "fast"]),
            (Kind::Choice(CHOICES), &["all", "TRUE"], &["some", ""]),
            (Kind::Url, &["http://127.0.0.1:80", "https://hub/x"], &["hub", "ftp://hub", "http://", "https://a b"]),
            (Kind::Path, &["/models", "models"], &["", "~/models"]),
            (
                Kind::Device,
                &["auto", "cpu", "cuda", "CUDA:1", "cuda:GPU-8f1a", "require-gpu", "PREFER_GPU"],
                &["", "gpu", "cuda:x", "cpu:0"],
            ),
            (Kind::VisibleDevices, &["", "0,1", "all", "GPU-8f1a", "-1", "NoDevFiles"], &["x", "0,,1", "-2"]),
        ];
        for (kind, good, bad) in cases {
            for text in good {
                assert!(kind.read(text).is_some(), "{kind:?} refused {text:?}");
            }
            for text in bad {
                assert!(kind.read(text).is_none(), "{kind:?} took {text:?}");
            }
        }
    }

    #[test]
    fn other_spellings_become_the_canonical_word() {
        let kind = Kind::Choices(&[("f32", &["fp32"]), ("bf16", &[])]);
        assert_eq!(kind.read("fp32, BF16"), Some(Value::List(vec!["f32".to_owned(), "bf16".to_owned()])));
    }

    #[test]
    fn a_device_has_one_word_and_a_preference_keeps_its_own() {
        let read = |text| Kind::Device.read(text);
        let word = |word: &str| Some(Value::Text(word.to_owned()));
        assert_eq!(read("Prefer_GPU"), word("prefer-gpu"));
        assert_eq!(read("require_gpu"), word("cuda"));
        assert_eq!(read("AUTO"), word("auto"));
    }

    #[test]
    fn a_placement_names_a_device() {
        assert!(Kind::Placement.read_row("ethics", "cuda:1").is_some());
        assert!(Kind::Placement.read_row("ethics", "cuda:x").is_none());
        assert!(Kind::Placement.read_row("ethics", "moon").is_none());
    }
}
