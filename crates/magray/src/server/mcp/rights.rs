//! Which tools read and which change something: the only place that decides who may use a tool.
//! A tool that is not listed is refused to everybody; what its annotations say of it is for agents to read.

use crate::server::keys::Access;

const RIGHTS: [(&str, Access); 9] = [
    ("embed_texts", Access::User),
    ("get_gpu_status", Access::User),
    ("list_models", Access::User),
    ("rerank", Access::User),
    ("similarity", Access::User),
    ("offload_gpu", Access::Admin),
    ("preheat_gpu", Access::Admin),
    ("release_gpu", Access::Admin),
    ("update_gpu_timeout", Access::Admin),
];

/// What a tool asks of its callers; `None`: nobody may use it.
pub(super) fn access(tool: &str) -> Option<Access> {
    RIGHTS.iter().find(|(name, _)| *name == tool).map(|(_, access)| *access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::mcp::Tools;

    #[test]
    fn every_tool_is_listed_and_agents_are_told_the_same() {
        let tools = Tools::routes().list_all();
        assert_eq!(tools.len(), RIGHTS.len());
        for tool in tools {
            let changes = tool.annotations.and_then(|annotations| annotations.read_only_hint) == Some(false);
            let expected = if changes { Access::Admin } else { Access::User };
            assert_eq!(access(&tool.name), Some(expected), "{}", tool.name);
        }
        assert_eq!(access("delete_models"), None);
    }
}
