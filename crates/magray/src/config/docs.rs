//! Writes `docs/configuration.md` from the table of settings; a test keeps the file current.
//! Says nothing that the program does not print itself.

use std::fmt::Write as _;

use super::{
    critics::CRITIC,
    setting::{Files, Setting},
    table::SETTINGS,
};
use crate::exit_code::Exit;

const HEAD: &str = "\
# Configuration

<!-- Written from the table of settings: change it there, then run `UPDATE_EXPECT=1 cargo test -p magray docs`. -->

Each setting has a default. A file overrides it, an environment variable overrides the file, and a flag of the command
line overrides all. `magray config` prints every setting with its value and where it came from.

The file is the first of these:

1. the one named by `--config FILE`;
2. the one named by the variable `MAGRAY_CONFIG`;
3. `magray.toml`, `magray.yaml` or `magray.yml` in the current folder;
4. `magray/config.toml`, `.yaml` or `.yml` in `$XDG_CONFIG_HOME` (`~/.config` without it).

A file of the third kind was merely found, and a stranger may have written it: the folder may be a repository that was just
cloned. It may choose a model and how it is computed, but it may not say where code, models, tokens or alerts come from or go
to, what is written where, or who may ask a server. The settings that do are marked `trusted` in the column `file`; in a
file that was found they are an error, which names the line. If you trust the file, name it: `--config ./magray.toml`. A
model that such a file names by `model.name`, `chat.model` or `server.models` is read as data, with all its sizes checked, also where it
is a folder; only the default models are ever pulled without being asked for.

TOML and YAML have the same tree: `gpu.batch.max_size` is `max_size` in the section `[gpu.batch]`, or `max_size` under
`batch` under `gpu`. A key that is not listed here is an error, and so is a value that is not allowed; the message
names the file and the line. A list is a list in both (`models = [\"a\", \"b\"]`), or one text with commas, as in a variable or
a flag. An empty variable counts as absent (but an empty `CUDA_VISIBLE_DEVICES` means no GPU).

```toml
[model]
name = \"all-MiniLM-L6-v2\"

[cpu]
threads = 2

[embed]
precision = \"bf16\"
```

```yaml
model:
  name: all-MiniLM-L6-v2
cpu:
  threads: 2
embed:
  precision: bf16
```
";

const CRITICS: &str = "
## Critics

Each critic of [`magray evaluate`](critics.md) has a section of its own, `[critics.NAME]`; a name has up to 64 letters, digits, `_` and `-`. With any
such section the built-in critics (`ethics`, `fairness`, `safety`) are gone, except those whose names have a section: they keep their prompt unless it has
another. `magray config` shows the critics in force.
";

const CACHE: &str = "
The store is `$XDG_DATA_HOME/magray`, or `~/.local/share/magray`, unless it is set. Compiled kernels and measured speeds
are kept in `$XDG_CACHE_HOME/magray`, or `~/.cache/magray`; what is deleted there is made again. The file of GPUs that are
out of service is `$XDG_STATE_HOME/magray/gpus.json`, or `~/.local/state/magray/gpus.json`, unless it is set. The sockets of
running engines are in `$XDG_RUNTIME_DIR/magray`, or in `~/.local/state/magray/run`, unless a folder is set.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Settings\n");
    push_table(&mut page, SETTINGS.iter());
    page.push_str(CRITICS);
    push_table(&mut page, CRITIC.iter());
    page.push_str(CACHE);
    page.push_str("\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for exit in Exit::ALL {
        let _ = writeln!(page, "| {} | {} |", exit.code(), exit.meaning());
    }
    page
}

fn push_table<'a>(page: &mut String, settings: impl Iterator<Item = &'a Setting>) {
    page.push_str("\n| key | takes | default | variable | flag | file | meaning |\n|---|---|---|---|---|---|---|\n");
    for setting in settings {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
        let env: Vec<String> = setting.env.iter().map(|name| code(name)).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} | {} |",
            setting.key,
            setting.allowed(),
            code(setting.default),
            env.join(", "),
            code(setting.flag.unwrap_or_default()),
            match setting.files {
                Files::Any => "any",
                Files::Trusted => "trusted",
            },
            setting.help
        );
    }
}

#[test]
fn the_page_in_docs_is_current() {
    expect_test::expect_file!["../../../../docs/configuration.md"].assert_eq(&page());
}
