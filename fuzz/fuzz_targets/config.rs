//! Whatever a configuration file holds, as TOML and as YAML: it is read or refused with a line of the file.
//! A value that is taken and shown is taken again, and is the same.
#![no_main]

#[expect(dead_code, reason = "only what reads is used")]
mod settings;

use libfuzzer_sys::fuzz_target;
use settings::{
    tree::{Data, Node, parse_toml, parse_yaml},
    value::Kind,
};

const SINGLE: [Kind; 9] = [
    Kind::Switch,
    Kind::Whole { min: -5, max: i64::MAX },
    Kind::Number { min: 0.0 },
    Kind::Choice(&[("auto", &[]), ("f32", &["fp32"])]),
    Kind::Text,
    Kind::Url,
    Kind::Path,
    Kind::VisibleDevices,
    Kind::Device,
];
const SEVERAL: [Kind; 7] = [
    Kind::Choices(&[("cuda", &[]), ("cpu", &[])]),
    Kind::Wholes,
    Kind::Names,
    Kind::VisibleDevices,
    Kind::Placement,
    Kind::NamedChoices(&[("low", &[]), ("high", &[])]),
    Kind::NamedSeconds,
];

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // YAML has more signs that end a line than TOML.
    let lines =
        1 + text.chars().filter(|sign| matches!(sign, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')).count();
    for parsed in [parse_toml(text), parse_yaml(text)] {
        match parsed {
            Ok(node) => check(&node, lines),
            Err(error) => assert!(error.line <= lines && !error.message.is_empty(), "{error:?}"),
        }
    }
});

fn check(node: &Node, lines: usize) {
    assert!(node.line <= lines, "{node:?}");
    match &node.data {
        Data::Null => {}
        Data::Scalar(text) => {
            for kind in SINGLE {
                if let Some(value) = kind.read(text) {
                    assert_eq!(kind.read(&value.to_string()), Some(value), "{kind:?}");
                }
            }
            for kind in SEVERAL {
                let _ = kind.read(text);
            }
        }
        Data::List(items) => {
            for kind in SEVERAL {
                let _ = kind.read_list(items.iter().filter_map(scalar));
            }
            items.iter().for_each(|item| check(item, lines));
        }
        Data::Table(rows) => {
            for (name, node) in rows {
                for kind in SEVERAL {
                    let _ = scalar(node).and_then(|text| kind.read_row(name, text));
                }
                check(node, lines);
            }
        }
    }
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.data {
        Data::Scalar(text) => Some(text),
        _ => None,
    }
}
