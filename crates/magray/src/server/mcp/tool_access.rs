//! What each tool asks of its callers.
//! A tool that is not listed is refused; its annotations inform agents and decide nothing.

use crate::server::keys::Access;

const TOOLS: [(&str, Access); 21] = [
    ("chat", Access::Compute),
    ("embed_texts", Access::Compute),
    ("evaluate_text", Access::Compute),
    ("get_gpu_status", Access::Read),
    ("list_collections", Access::Read),
    ("list_models", Access::Read),
    ("rerank", Access::Compute),
    ("search_collection", Access::Compute),
    ("similarity", Access::Compute),
    ("add_documents", Access::Change),
    ("alias_model", Access::Change),
    ("clear_gpu_cache", Access::Change),
    ("delete_model", Access::Change),
    ("load_model", Access::Change),
    ("offload_gpu", Access::Change),
    ("preheat_gpu", Access::Change),
    ("pull_model", Access::Change),
    ("release_gpu", Access::Change),
    ("unload_model", Access::Change),
    ("update_gpu_priority", Access::Change),
    ("update_gpu_timeout", Access::Change),
];

/// `None`: it is not listed.
pub(super) fn of(tool: &str) -> Option<Access> {
    TOOLS.iter().find(|(name, _)| *name == tool).map(|(_, access)| *access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::mcp::Tools;

    #[test]
    fn every_tool_is_listed_as_its_annotations_say() {
        let tools = Tools::all_routes().list_all();
        assert_eq!(tools.len(), TOOLS.len());
        for tool in tools {
            let changes = tool.annotations.and_then(|annotations| annotations.read_only_hint) == Some(false);
            let access = of(&tool.name).expect("the tool is listed");
            assert_eq!(access == Access::Change, changes, "{}", tool.name);
        }
        assert_eq!(of("delete_models"), None);
    }
}
