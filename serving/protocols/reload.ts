/** `POST /v1/reload`: reloads the files of pipelines, workflows and services, as SIGHUP does. */
import { getControlCaller } from '../../lib/rpc/control-caller.ts';
import type { Endpoints } from './endpoints.ts';
import type { ProtocolContext } from './handle-prediction.ts';

export function registerReload(
  { http: { app } }: Endpoints,
  { access }: ProtocolContext,
  reload: () => Promise<void>,
): void {
  const action = { scope: 'control:activate', action: 'reload', target: 'files' } as const;
  app.post('/v1/reload', async (request) => {
    await access.run(getControlCaller(request), action, reload);
    return {};
  });
}
