// Chooses one of the models that do what is wanted.

import { Field } from "../parts";
import type { FeatureModel } from "../state/types";

export function ModelChoice({ models, chosen, choose }: { models: FeatureModel[]; chosen: string; choose: (name: string) => void }) {
  return (
    <Field label="Model">
      <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
        {models.map((model) => (
          <option key={model.name} value={model.name}>
            {model.name}
          </option>
        ))}
      </select>
    </Field>
  );
}
