/**
 * Cube's commands over baidu_std, the JSON as the attachment. As control over gRPC, each is turned into the call over
 * HTTP, so that access, logs and answers are the same, and so that any thread can take it.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { DeferredResponse } from '../lib/rpc/deferred-response.ts';
import type { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { BODY_CHARS_MAX } from './cmd-service.ts';
import { callFailure } from './http-routes.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

const SERVICE = 'rec.mcube.ControlService';
const METHOD = 'cmd';

type Answer = (call: HttpCall) => Promise<HttpResult>;

/** @param answer answers a call over HTTP */
export function addCmdCall(routes: RpcRoutes, answer: Answer): void {
  routes.add(SERVICE, METHOD, ({ bytes, attachmentStart, attachmentEnd }, response) => {
    // Whoever calls: it is copied before anyone has looked at who that is.
    if (attachmentEnd - attachmentStart > BODY_CHARS_MAX) {
      throw new CubeError('TOO_LARGE', `a command has at most ${BODY_CHARS_MAX} bytes`);
    }
    const { peerAddress = '', authentication, certificate } = response.caller;
    const call: HttpCall = {
      method: 'POST',
      url: `/ControlService/${METHOD}`,
      // No page in a browser can speak baidu_std: there is no name to hold against rebinding.
      headers: {
        host: 'localhost',
        ...(authentication === '' ? {} : { authorization: authentication }),
      },
      body: Uint8Array.prototype.slice.call(bytes, attachmentStart, attachmentEnd),
      remoteAddress: peerAddress,
      certificate,
    };
    const deferred = response.defer();
    void answerCommand(answer, call, deferred);
  });
}

async function answerCommand(
  answer: Answer,
  call: HttpCall,
  deferred: DeferredResponse,
): Promise<void> {
  try {
    const result = await answer(call);
    // A frame has no HTTP status: what failed is an error.
    if (result.status !== 200) throw callFailure(result);
    const { body } = result;
    deferred.begin(body.length);
    deferred.output.append(body);
    deferred.finish();
  } catch (error) {
    deferred.fail(error);
  }
}
