/** Rules on addresses: ranges, trusted proxies, and forged `x-forwarded-for`. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AddressRules, checkAddressRange } from '../../lib/access/address-rules.ts';
import { getErrorCode } from '../support/errors.ts';

const PROXY = '10.0.0.1';

test('only allowed addresses and trusted proxies may connect', () => {
  const rules = new AddressRules({
    allowed: ['192.168.0.0/16', '2001:db8::/32'],
    trustedProxies: [PROXY],
  });
  for (const address of ['192.168.3.4', '::ffff:192.168.3.4', '2001:db8::7', PROXY]) {
    assert.equal(rules.refusesPeer(address), false, address);
  }
  for (const address of ['192.169.0.1', '2001:db9::1', undefined, 'not an address']) {
    assert.equal(rules.refusesPeer(address), true, address);
  }
});

test('the client is the last hop that is not a trusted proxy', () => {
  const rules = new AddressRules({ trustedProxies: ['10.0.0.0/8'] });
  for (const [peer, header, client] of [
    [PROXY, '1.2.3.4', '1.2.3.4'],
    [PROXY, '6.6.6.6, 1.2.3.4, 10.9.9.9', '1.2.3.4'],
    ['5.5.5.5', '1.2.3.4', '5.5.5.5'],
    [PROXY, undefined, PROXY],
    // Never the address of the proxy, which may be an allowed one.
    [PROXY, '', undefined],
    [PROXY, '1.2.3.4, garbage', undefined],
    [PROXY, `1.2.3.4, garbage, ${PROXY}`, undefined],
    [PROXY, '1.2.3.4, garbage, 10.0.0.2', undefined],
    [PROXY, 'garbage, 1.2.3.4, 10.0.0.2', '1.2.3.4'],
    [PROXY, `${'9.9.9.9,'.repeat(10_000)}1.2.3.4`, '1.2.3.4'],
    [PROXY, `1.2.3.4${`,${PROXY}`.repeat(1_000)}`, undefined],
    [PROXY, `1.2.3.4${`,${PROXY}`.repeat(40)}`, undefined],
    [PROXY, '1.2.3.4:5000', '1.2.3.4'],
    [PROXY, '[2001:db8::1]:5000', '2001:db8::1'],
    [PROXY, '[2001:db8::1]', '2001:db8::1'],
  ] as const) {
    assert.equal(rules.findClient(peer, header), client, header?.slice(0, 60));
  }
});

test('no header of an untrusted peer changes its address', () => {
  const rules = new AddressRules({ trustedProxies: [PROXY] });
  fc.assert(
    fc.property(fc.string(), (header) => {
      assert.equal(rules.findClient('203.0.113.9', header), '203.0.113.9');
    }),
  );
});

test('ranges that are none are refused', () => {
  for (const range of [
    '10.0.0.0/33',
    '::/129',
    '10.0.0/8',
    'host',
    '',
    '1.2.3.4/8/8',
    '1.2.3.4/-1',
  ]) {
    assert.equal(
      getErrorCode(() => checkAddressRange(range)),
      'INVALID_ARGUMENT',
      range,
    );
  }
});
