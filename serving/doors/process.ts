/** What operators ask of a process: whether it lives, whether it is ready, what it does (docs/wire/serving.md). */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type DoorContext, type Fronts, whyNotReady } from './fronts.ts';

export function addProcessRoutes({ http: { app } }: Fronts, context: DoorContext): void {
  const { models, admission, metrics } = context;
  const ready = async (_request: FastifyRequest, reply: FastifyReply): Promise<object> => {
    const reason = whyNotReady(context);
    if (reason === undefined) return { live: true, ready: true };
    reply.code(503);
    return { live: true, ready: false, error: reason };
  };
  for (const path of ['/healthz', '/v2/health/live']) app.get(path, async () => ({ live: true }));
  for (const path of ['/readyz', '/v2/health/ready']) app.get(path, ready);
  app.get('/v1/status', async () => {
    const [first] = models.status();
    return {
      ready: whyNotReady(context) === undefined,
      stopping: admission.closed,
      inFlight: admission.inFlight,
      ...first,
      models: models.status(),
    };
  });
  app.get('/metrics', async (_request, reply) => {
    reply.type(metrics.contentType);
    return metrics.text();
  });
}
