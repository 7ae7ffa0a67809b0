//! Finds relative links of Markdown files that lead nowhere. Never asks the network about the others.

use super::Finding;
use super::tree::{Kind, SourceFile};

/// The relative links of one file whose target does not exist; `exists` answers for paths from the root.
pub(super) fn broken_links(file: &SourceFile, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    if file.kind != Kind::Markdown {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut is_code = false;
    for (number, line) in file.numbered_lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for target in targets(&without_inline_code(line)) {
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:") || target.starts_with('#');
            let path = target.split('#').next().unwrap_or_default();
            if !is_elsewhere && !resolve(&file.path, path).is_some_and(|found| exists(&found)) {
                findings.push(Finding::new(file, number, "links", format!("'{target}' leads nowhere")));
            }
        }
    }
    findings
}

/// What stands in the brackets of `[text](target "title")`, and behind `[name]:`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split(')').next());
    let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    let bare = |target: &str| target.split_whitespace().next().map(|t| t.trim_matches(['<', '>']).to_owned());
    inline.chain(named).filter_map(bare).collect()
}

fn without_inline_code(line: &str) -> String {
    // Every second part between backticks is code; an unpaired backtick hides the rest, which errs to the quiet side.
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The path from the root that a link of this file means; `None` where it leaves the tree.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<usize> {
        let file = SourceFile::new("docs/guide/a.md", text);
        let there = ["docs/guide/b.md", "README.md", "docs"];
        broken_links(&file, |path| there.contains(&path)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn targets_are_resolved_from_the_folder_of_the_file() {
        assert_eq!(broken("[b](b.md) and [r](../../README.md#use \"title\") and [d](../)\n"), []);
        assert_eq!(broken("[b](b.md)\n[c](c.md) [r](README.md)\n"), [2, 2]);
        assert_eq!(broken("[out](../../../x.md)\n"), [1]);
    }

    #[test]
    fn reference_links_and_images_are_read_too() {
        assert_eq!(broken("[b]: b.md\n[c]: <c.md>\n![p](p.png)\n"), [2, 3]);
    }

    #[test]
    fn the_web_anchors_and_code_are_left_alone() {
        assert_eq!(broken("[w](https://a.b/c) [m](mailto:x@y) [h](#head)\n```\n[c](c.md)\n```\n`[c](c.md)`\n"), []);
    }

    #[test]
    fn prose_of_other_files_is_not_read() {
        assert_eq!(broken_links(&SourceFile::new("a.rs", "// [c](c.md)\n"), |_| false), []);
    }
}
