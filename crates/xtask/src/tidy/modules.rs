//! Reads which modules a crate has and which of each other's names they use.
//! No full parser: `use` trees, and paths from `crate`, `super` and `self`. Leaves out what is compiled for tests alone.

use super::scan::code_only;
use super::tree::{Kind, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// How many re-exports a name is followed through.
const MOST_HOPS: usize = 16;

/// The names from the root of the crate to a module; empty for the root.
pub(super) type ModulePath = Vec<String>;

#[derive(Debug, Default)]
pub(super) struct Modules {
    by_path: BTreeMap<ModulePath, Module>,
}

/// A use of another module's name.
#[derive(Debug)]
pub(super) struct Use<'a> {
    pub(super) from: &'a ModulePath,
    pub(super) to: ModulePath,
    pub(super) file: &'a str,
    pub(super) line: usize,
}

#[derive(Debug, Default)]
struct Module {
    file: String,
    /// What `use` brings into the module: its name there, and where it comes from.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<(usize, Vec<String>)>,
    items: BTreeSet<String>,
    /// Every path in the code that may lead to another module.
    references: Vec<(usize, Vec<String>)>,
    /// Every word of the code with its first line: what a glob import may have brought in.
    words: BTreeMap<String, usize>,
}

impl Modules {
    /// Reads the files under `crates/NAME/src` out of all files of the tree.
    pub(super) fn of_crate(name: &str, files: &[SourceFile]) -> Self {
        let mut modules = Self::default();
        let mut for_tests = Vec::new();
        let has_library = files.iter().any(|file| file.path == format!("crates/{name}/src/lib.rs"));
        for file in files.iter().filter(|file| file.kind == Kind::Rust) {
            if let Some(path) = module_path(name, &file.path)
                && !(has_library && file.path.ends_with("/src/main.rs"))
            {
                let tokens = tokens(&code_only(&file.text));
                Reader { tokens: &tokens, at: 0, modules: &mut modules, for_tests: &mut for_tests }
                    .body(&file.path, path);
            }
        }
        modules.by_path.retain(|path, _| !for_tests.iter().any(|test| path.starts_with(test)));
        modules
    }

    pub(super) fn uses(&self) -> Vec<Use<'_>> {
        let mut uses = Vec::new();
        for (from, module) in &self.by_path {
            let mut add = |line, to: Option<ModulePath>| {
                uses.extend(to.filter(|to| to != from).map(|to| Use { from, to, file: &module.file, line }));
            };
            for (line, path) in &module.references {
                add(*line, self.resolve(from, path, MOST_HOPS));
            }
            for glob in module.globs.iter().filter_map(|(_, path)| self.resolve(from, path, MOST_HOPS)) {
                let own = |word: &String| module.items.contains(word) || module.imports.contains_key(word);
                for (word, line) in module.words.iter().filter(|(word, _)| !own(word)) {
                    add(*line, self.find(&glob, word, MOST_HOPS).map(|found| found.owner));
                }
            }
        }
        uses
    }

    /// The module that declares what a path means in `from`; `None` if it is none of this crate.
    fn resolve(&self, from: &[String], path: &[String], hops: usize) -> Option<ModulePath> {
        let mut current = from.to_vec();
        let mut rest = path;
        let mut is_anchored = false;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => current.clear(),
                "self" => {}
                "super" => {
                    current.pop()?;
                }
                name => match self.find(&current, name, hops) {
                    Some(Found { owner, is_module: true }) => current = owner,
                    Some(Found { owner, is_module: false }) => return Some(owner),
                    // A first name that the module does not have is another crate's.
                    None => return is_anchored.then_some(current),
                },
            }
            is_anchored = true;
            rest = others;
        }
        Some(current)
    }

    /// What a name means in a module: a module below, what it imports, or an item of its own.
    fn find(&self, module: &[String], name: &str, hops: usize) -> Option<Found> {
        let hops = hops.checked_sub(1)?;
        let mut below = module.to_vec();
        below.push(name.to_owned());
        if self.by_path.contains_key(&below) {
            return Some(Found { owner: below, is_module: true });
        }
        let here = self.by_path.get(module)?;
        if here.items.contains(name) {
            return Some(Found { owner: module.to_vec(), is_module: false });
        }
        if let Some(path) = here.imports.get(name).filter(|path| path.as_slice() != [name]) {
            let owner = self.resolve(module, path, hops)?;
            let is_module = owner.last() == path.last();
            return Some(Found { owner, is_module });
        }
        here.globs.iter().find_map(|(_, path)| self.find(&self.resolve(module, path, hops)?, name, hops))
    }
}

struct Found {
    owner: ModulePath,
    is_module: bool,
}

/// `crates/NAME/src/a/b.rs` is the module `a::b`; a main beside a library is a program of its own and not read.
fn module_path(name: &str, file: &str) -> Option<ModulePath> {
    let inside = file.strip_prefix("crates/")?.strip_prefix(name)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let mut parts: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if parts[0] == "bin" {
        return None;
    }
    if parts.last()? == "mod" || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    Some(parts)
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Separator,
    Symbol(char),
}

fn tokens(code: &str) -> Vec<(usize, Token)> {
    let mut found = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (token, length) = if length > 0 {
                (Token::Word(rest[..length].to_owned()), length)
            } else if rest.starts_with("::") {
                (Token::Separator, 2)
            } else {
                (Token::Symbol(first), first.len_utf8())
            };
            found.push((index + 1, token));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// Walks through the tokens of one file.
struct Reader<'a> {
    tokens: &'a [(usize, Token)],
    at: usize,
    modules: &'a mut Modules,
    for_tests: &'a mut Vec<ModulePath>,
}

impl Reader<'_> {
    /// Reads up to the brace that closes the module, or the end of the file.
    fn body(&mut self, file: &str, path: ModulePath) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut depth = 0_usize;
        while let Some((line, token)) = self.tokens.get(self.at) {
            match token {
                Token::Symbol('#') => {
                    if self.attribute_is_for_tests() {
                        self.skip_item(&path);
                    }
                    continue;
                }
                Token::Symbol('{') => depth += 1,
                Token::Symbol('}') if depth == 0 => break,
                Token::Symbol('}') => depth -= 1,
                Token::Word(word) => {
                    module.words.entry(word.clone()).or_insert(*line);
                    match word.as_str() {
                        "pub" if self.symbol(self.at + 1, '(') => self.skip_to(')'),
                        "use" => {
                            self.at += 1;
                            self.use_tree(&mut module, *line, &[], depth == 0);
                            continue;
                        }
                        "mod" if self.symbol(self.at + 2, '{') => {
                            let name = self.word(self.at + 1).to_owned();
                            self.at += 3;
                            self.body(file, [path.clone(), vec![name]].concat());
                        }
                        "crate" | "super" | "self" if self.separator(self.at + 1) => {
                            let reference = self.path();
                            module.references.push((*line, reference));
                            continue;
                        }
                        "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" if depth == 0 => {
                            module.items.insert(self.word(self.at + 1).to_owned());
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        self.modules.by_path.insert(path, module);
    }

    /// Passes `#[...]`, and says whether it is `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
    fn attribute_is_for_tests(&mut self) -> bool {
        self.at += 1 + usize::from(self.symbol(self.at + 1, '!'));
        let begin = self.at;
        self.skip_to(']');
        self.at += 1;
        let inside: Vec<&str> = (begin..self.at).map(|at| self.word(at)).filter(|word| !word.is_empty()).collect();
        inside == ["cfg", "test"] || inside.starts_with(&["cfg", "all", "test"])
    }

    /// Passes an item, and notes the module if it declares one.
    fn skip_item(&mut self, path: &[String]) {
        let mut depth = 0_i32;
        while let Some((_, token)) = self.tokens.get(self.at) {
            match token {
                Token::Symbol('{' | '(' | '[') => depth += 1,
                Token::Symbol('}') if depth == 0 => return,
                Token::Symbol('}' | ')' | ']') => depth -= 1,
                Token::Word(word) if word == "mod" && depth == 0 => {
                    self.for_tests.push([path.to_vec(), vec![self.word(self.at + 1).to_owned()]].concat());
                }
                _ => {}
            }
            let ends = matches!(token, Token::Symbol(';' | '}')) && depth == 0;
            self.at += 1;
            if ends {
                return;
            }
        }
    }

    /// `a::b::{c, d as e, *}` behind `use`, with what stands before a brace in `prefix`; passes the `;`.
    fn use_tree(&mut self, module: &mut Module, line: usize, prefix: &[String], is_of_module: bool) {
        let mut path = prefix.to_vec();
        loop {
            match self.tokens.get(self.at).map(|(_, token)| token) {
                Some(Token::Word(word)) if word == "as" => {
                    self.at += 1;
                    let name = self.word(self.at).to_owned();
                    add_import(module, line, std::mem::take(&mut path), Some(name), is_of_module);
                }
                Some(Token::Word(word)) => path.push(word.clone()),
                Some(Token::Symbol('*')) => {
                    module.globs.push((line, std::mem::take(&mut path)));
                }
                Some(Token::Symbol('{')) => {
                    self.at += 1;
                    self.use_tree(module, line, &std::mem::take(&mut path), is_of_module);
                    continue;
                }
                Some(Token::Symbol(end @ (',' | '}' | ';'))) => {
                    if path.len() > prefix.len() {
                        add_import(module, line, std::mem::take(&mut path), None, is_of_module);
                    }
                    path = prefix.to_vec();
                    if *end != ',' {
                        self.at += 1;
                        return;
                    }
                }
                Some(_) => {}
                None => return,
            }
            self.at += 1;
        }
    }

    /// The words of `a::b::c` from here on.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.word(self.at).to_owned()];
        self.at += 1;
        while self.separator(self.at) && !self.word(self.at + 1).is_empty() {
            path.push(self.word(self.at + 1).to_owned());
            self.at += 2;
        }
        path
    }

    fn skip_to(&mut self, end: char) {
        let begin = if end == ')' { '(' } else { '[' };
        let mut depth = 0;
        while let Some((_, token)) = self.tokens.get(self.at) {
            if *token == Token::Symbol(begin) {
                depth += 1;
            } else if *token == Token::Symbol(end) {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
            self.at += 1;
        }
    }

    fn word(&self, at: usize) -> &str {
        match self.tokens.get(at) {
            Some((_, Token::Word(word))) => word,
            _ => "",
        }
    }

    fn symbol(&self, at: usize, wanted: char) -> bool {
        matches!(self.tokens.get(at), Some((_, Token::Symbol(found))) if *found == wanted)
    }

    fn separator(&self, at: usize) -> bool {
        matches!(self.tokens.get(at), Some((_, Token::Separator)))
    }
}

/// Notes what one leaf of a `use` tree brings in; `a::b::self` is `a::b`.
fn add_import(module: &mut Module, line: usize, mut path: Vec<String>, name: Option<String>, is_of_module: bool) {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if is_of_module && let Some(name) = name.or_else(|| path.last().cloned()) {
        module.imports.insert(name, path.clone());
    }
    module.references.push((line, path));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses between the modules of a crate, as `from -> to`, sorted and once each.
    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::new(&format!("crates/x/src/{path}"), text)).collect();
        let modules = Modules::of_crate("x", &files);
        let name = |path: &ModulePath| if path.is_empty() { "crate".to_owned() } else { path.join("::") };
        let found: BTreeSet<String> =
            modules.uses().iter().map(|found| format!("{} -> {}", name(found.from), name(&found.to))).collect();
        found.into_iter().collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\npub use a::A;\n");

    #[test]
    fn paths_from_crate_super_and_self_are_followed() {
        let b = "use crate::a::A;\nfn f() -> super::c::C { self::d::g() }\n";
        let files = [LIB, ("a.rs", "pub struct A;"), ("b/mod.rs", b), ("b/d.rs", "pub fn g() {}"), ("c.rs", "")];
        assert_eq!(uses(&files), ["b -> a", "b -> b::d", "b -> c", "crate -> a"]);
    }

    #[test]
    fn use_trees_are_read_to_their_leaves() {
        let d = "use crate::{a::{self, A as Other}, b::{B, inner::I}};\nuse std::fmt::{self, Write};\n";
        let files =
            [("a.rs", "pub struct A;"), ("b.rs", "pub struct B;\npub mod inner { pub struct I; }"), ("d.rs", d)];
        assert_eq!(uses(&[LIB, files[0], files[1], files[2]]), ["crate -> a", "d -> a", "d -> b", "d -> b::inner"]);
    }

    #[test]
    fn a_re_export_leads_to_the_module_that_declares_it() {
        let files = [LIB, ("a.rs", "pub struct A;"), ("b.rs", "use crate::A;\nuse super::Unknown;\n")];
        assert_eq!(uses(&files), ["b -> a", "b -> crate", "crate -> a"]);
    }

    #[test]
    fn a_glob_counts_by_the_words_that_come_from_it() {
        let files = [LIB, ("a.rs", "pub struct A;"), ("b.rs", "use super::*;\nfn f(a: A) {}\n"), ("c.rs", "")];
        assert_eq!(uses(&files), ["b -> a", "crate -> a"]);
    }

    #[test]
    fn what_is_compiled_for_tests_is_left_out() {
        let a =
            "pub struct A;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n#[cfg(all(test, unix))]\nmod more;\n";
        let files = [LIB, ("a.rs", a), ("a/more.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")];
        assert_eq!(uses(&files), ["crate -> a"]);
    }

    #[test]
    fn other_crates_visibility_and_comments_are_no_uses() {
        let b = "use a_crate::A;\npub(in crate::a) struct B;\n// crate::a::A\nconst C: &str = \"crate::a::A\";\n";
        assert_eq!(uses(&[LIB, ("a.rs", "pub struct A;"), ("b.rs", b)]), ["crate -> a"]);
    }
}
