/**
 * `GET /v1/models/{model}/features`: what requests give a model: hash, slots, dense features with
 * their scaling, and the click output, as in features.json. Clients and tools read it instead of a
 * copy of the file.
 */
import { featureSpecToJson } from '../../lib/core/feature-spec.ts';
import { type Models, requireBundle } from '../models/model-registry.ts';
import type { Endpoints } from './endpoints.ts';
import { checkModelAccess } from './handle-prediction.ts';

interface FeaturesRoute {
  Params: { readonly model: string; readonly version?: string };
}

const PATHS = [
  '/v1/models/:model/features',
  '/v1/models/:model/versions/:version/features',
] as const;

export function registerModelFeatures({ http: { app } }: Endpoints, models: Models): void {
  for (const path of PATHS) {
    app.get<FeaturesRoute>(path, async ({ params: { model, version }, grant }) => {
      const found = models.find(model, version === undefined ? {} : { version });
      const loaded = requireBundle(checkModelAccess(models, grant, found));
      const features = featureSpecToJson(loaded.features);
      return Object.assign({ model, version: loaded.version }, features);
    });
  }
}
