//! Finds circles among the modules beside each other in a crate: each must be readable without the next.
//! A module may use what its parent declares, and a parent its children; neither makes a circle.

use super::Finding;
use super::modules::{ModulePath, Modules};
use super::tree::SourceFile;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Uses that close a circle today: the first module should not use the second. The list only shrinks: an entry that closes no circle
/// any more is an error as well.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("magray-simulator::check::requests", "magray-simulator::check::weights"),
    ("magray-simulator::check::workers", "magray-simulator::check::batches"),
    ("magray-simulator::check::workers", "magray-simulator::check::weights"),
];

/// A module with the crate's name before it.
type Name = String;

/// Which module uses which of those beside it, with the file and line of one such use.
type Graph = BTreeMap<Name, BTreeMap<Name, (String, usize)>>;

pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("crates/")?.split_once("/src/").map(|(name, _)| name))
        .collect();
    let mut graph = Graph::new();
    for name in crates {
        add_edges(&mut graph, name, &Modules::of_crate(name, files));
    }
    findings(graph, EXCEPTIONS)
}

fn needless(message: String) -> Finding {
    Finding { path: "crates/xtask/src/tidy/circles.rs".to_owned(), line: 0, rule: "exceptions", message }
}

/// For a use between two modules: the edge between those that hold them in their nearest common parent.
fn add_edges(graph: &mut Graph, crate_name: &str, modules: &Modules) {
    let name = |path: &[String]| format!("{crate_name}::{}", path.join("::"));
    for found in modules.uses() {
        let shared = shared_parts(found.from, &found.to);
        // One holds the other: a parent and its child.
        if shared < found.from.len() && shared < found.to.len() {
            let (from, to) = (name(&found.from[..=shared]), name(&found.to[..=shared]));
            graph.entry(from).or_default().entry(to).or_insert_with(|| (found.file.to_owned(), found.line));
        }
    }
}

fn shared_parts(one: &ModulePath, other: &ModulePath) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// The circles that are left without the excepted uses, and the exceptions that close none.
fn findings(mut graph: Graph, exceptions: &[(&str, &str)]) -> Vec<Finding> {
    let excepted: Vec<_> = exceptions
        .iter()
        .map(|&(from, to)| (from, to, graph.get_mut(from).is_some_and(|uses| uses.remove(to).is_some())))
        .collect();
    let stale = excepted.into_iter().filter(|&(from, to, exists)| !exists || shortest_path(&graph, to, from).is_none());
    let stale = stale.map(|(from, to, _)| {
        needless(format!("the use of '{to}' in '{from}' closes no circle any more: remove it from the list"))
    });
    let mut seen = BTreeSet::new();
    let mut found: Vec<Finding> = stale.collect();
    for (from, uses) in &graph {
        for (to, (file, line)) in uses {
            let Some(back) = shortest_path(&graph, to, from) else { continue };
            if seen.insert(back.iter().cloned().collect::<BTreeSet<_>>()) {
                let places = back.windows(2).map(|pair| {
                    let (file, line) = &graph[&pair[0]][&pair[1]];
                    format!("'{}' uses '{}' ({file}:{line})", pair[0], pair[1])
                });
                let places: Vec<String> = places.collect();
                found.push(Finding {
                    path: file.clone(),
                    line: *line,
                    rule: "circles",
                    message: format!("'{from}' uses '{to}', but {}: move what both need", places.join(", ")),
                });
            }
        }
    }
    found
}

/// The shortest path along uses from one module to another, both included.
fn shortest_path(graph: &Graph, from: &str, to: &str) -> Option<Vec<Name>> {
    let mut came_from = BTreeMap::from([(from, from)]);
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front() {
        if at == to {
            let mut path = vec![at.to_owned()];
            let mut at = at;
            while at != from {
                at = came_from[at];
                path.push(at.to_owned());
            }
            path.reverse();
            return Some(path);
        }
        for next in graph.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                open.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)], exceptions: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::new(&format!("crates/x/src/{path}"), text)).collect();
        let mut graph = Graph::new();
        add_edges(&mut graph, "x", &Modules::of_crate("x", &files));
        findings(graph, exceptions).into_iter().map(|finding| finding.to_string()).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\n");

    #[test]
    fn two_modules_that_use_each_other_are_found_with_both_places() {
        let files = [LIB, ("a.rs", "use crate::b::B;\npub struct A;"), ("b.rs", "pub struct B;\nuse crate::a::A;")];
        let expected = "crates/x/src/a.rs:1: [circles] 'x::a' uses 'x::b', but 'x::b' uses 'x::a' \
                        (crates/x/src/b.rs:2): move what both need";
        assert_eq!(messages(&files, &[]), [expected]);
    }

    #[test]
    fn a_longer_circle_is_found_once() {
        let files = [LIB, ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", "use crate::a::A;")];
        assert_eq!(messages(&files, &[]).len(), 1);
        assert_eq!(messages(&files[..3], &[]), [""; 0]);
    }

    #[test]
    fn folders_count_as_one_towards_each_other() {
        let files = [
            LIB,
            ("a/mod.rs", "mod one;\nmod two;"),
            ("a/one.rs", "use crate::b::B;"),
            ("a/two.rs", "pub struct T;"),
            ("b.rs", "use crate::a::two::T;"),
        ];
        assert_eq!(messages(&files, &[]).len(), 1);
    }

    #[test]
    fn parents_and_children_may_use_each_other() {
        let files = [
            LIB,
            ("a/mod.rs", "mod one;\nuse one::O;\npub struct A;"),
            ("a/one.rs", "use super::A;\nuse crate::R;\npub struct O;"),
        ];
        assert_eq!(messages(&files, &[]), [""; 0]);
    }

    #[test]
    fn an_exception_must_close_a_circle() {
        let files = [LIB, ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
        assert_eq!(messages(&files, &[("x::a", "x::b")]), [""; 0]);
        assert_eq!(messages(&files, &[("x::a", "x::b"), ("x::b", "x::a")]).len(), 2);
        assert_eq!(messages(&files, &[("x::a", "x::b"), ("x::a", "x::c")]).len(), 1);
        assert_eq!(messages(&files[..2], &[("x::a", "x::b")]).len(), 1);
    }
}
