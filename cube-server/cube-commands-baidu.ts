/**
 * Cube's commands over baidu_std, with the JSON as attachment. Each is converted to an HTTP call,
 * so that access control, logs and responses are the same, and any thread can receive it.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { DeferredResponse } from '../lib/rpc/deferred-response.ts';
import type { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { COMMAND_CHARS_MAX } from './cube-command-service.ts';
import { readCallError } from './http-routes.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

const SERVICE = 'rec.mcube.ControlService';
const METHOD = 'cmd';

type ControlHandler = (call: HttpCall) => Promise<HttpResult>;

/** @param answer handles an HTTP call */
export function addCubeCommandCall(routes: RpcRoutes, answer: ControlHandler): void {
  routes.add(SERVICE, METHOD, ({ bytes, attachmentStart, attachmentEnd }, response) => {
    // Checked before the body is copied: the caller is not authenticated yet.
    if (attachmentEnd - attachmentStart > COMMAND_CHARS_MAX) {
      throw new CubeError('TOO_LARGE', `a command has at most ${COMMAND_CHARS_MAX} bytes`);
    }
    const { peerAddress = '', authentication, certificate } = response.caller;
    const call: HttpCall = {
      method: 'POST',
      url: `/ControlService/${METHOD}`,
      // Browsers cannot speak baidu_std, so DNS rebinding needs no check of the host name.
      headers: {
        host: 'localhost',
        ...(authentication === '' ? {} : { authorization: authentication }),
      },
      body: Uint8Array.prototype.slice.call(bytes, attachmentStart, attachmentEnd),
      remoteAddress: peerAddress,
      certificate,
    };
    const deferred = response.defer();
    void respondToCommand(answer, call, deferred);
  });
}

async function respondToCommand(
  answer: ControlHandler,
  call: HttpCall,
  deferred: DeferredResponse,
): Promise<void> {
  try {
    const result = await answer(call);
    // baidu_std has no HTTP status: every failure is an error response.
    if (result.status !== 200) throw readCallError(result);
    const { body } = result;
    deferred.begin(body.length);
    deferred.output.append(body);
    deferred.finish();
  } catch (error) {
    deferred.fail(error);
  }
}
