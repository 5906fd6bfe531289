/** The console of a serving process, and the example rows of its form for predictions. */
import type { ConsoleFeed } from '../../lib/console/console-feed.ts';
import { registerConsole } from '../../lib/console/console-routes.ts';
import { listExampleRows } from '../metrics/console-source.ts';
import { type Models, requireBundle } from '../models/model-registry.ts';
import type { Endpoints } from './endpoints.ts';

export function registerServingConsole(
  { http: { app } }: Endpoints,
  models: Models,
  feed: ConsoleFeed,
): void {
  registerConsole(app, feed);
  app.get<{ Querystring: { model?: string } }>('/v1/console/examples', async ({ query }) => {
    const { model } = query;
    const loaded = model === undefined ? models.findOnly() : models.find(model);
    return listExampleRows(requireBundle(loaded));
  });
}
