// Delayed messages, a recall, and transactions with the official Node client; prints a line for each thing that it saw.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

// Far enough that a busy machine has sent and recalled all before.
const soon = 20000;
const later = (wait) => new Promise((done) => setTimeout(done, wait));

function message(topic, body, more) {
  const properties = new Map().set('colour', 'blue');
  return { topic, tag: 'red', keys: ['k'], properties, body: Buffer.from(body), ...more };
}

function described(each) {
  return `${each.body} ${each.tag} ${each.keys.join(',')} ${each.properties.get('colour')} ${each.deliveryAttempt}`;
}

async function received(endpoints, topic, count) {
  const consumer = await started(() => new SimpleConsumer({
    consumerGroup: `${topic}-readers`, endpoints, subscriptions: new Map().set(topic, '*'), awaitDuration: 5000, requestTimeout: 60000,
  }));
  const found = [];
  for (let end = 0; !end || Date.now() < end;) {
    for (const each of await consumer.receive(16, 300000)) {
      found.push(each);
      await consumer.ack(each);
    }
    if (found.length >= count && !end) end = Date.now() + 4000;
  }
  await consumer.shutdown();
  return found;
}

// A client waits for ever for settings that came before the routes did; another one has better luck.
async function started(make) {
  for (let tries = 0; tries < 48; tries++) {
    const client = make();
    if (await Promise.race([client.startup().then(() => true), later(5000)])) return client;
  }
  throw new Error('no client has started');
}

async function main([endpoints, delayed, paid]) {
  const asked = new Set();
  const checker = {
    async check(half) {
      // on a busy machine a half is asked about that is ended a moment later: it is left to that
      if (!half.body.toString().startsWith('asked-')) return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
      asked.add(half.body.toString());
      return half.body.toString() === 'asked-commit' ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    },
  };
  const producer = await started(() => new Producer({ endpoints, topic: [delayed, paid], checker, requestTimeout: 60000 }));
  for (const end of ['commit', 'rollback', 'asked-commit', 'asked-rollback']) {
    const transaction = producer.beginTransaction();
    await producer.send(message(paid, end), transaction);
    if (end === 'commit') await transaction.commit();
    if (end === 'rollback') await transaction.rollback();
  }
  const due = new Map();
  const now = Date.now();
  for (const wait of [soon + 6500, soon + 4500, soon + 5500]) {
    const deliveryTimestamp = new Date(now + wait);
    due.set(`${wait}`, deliveryTimestamp);
    await producer.send(message(delayed, `${wait}`, { deliveryTimestamp }));
  }
  const kept = message(delayed, 'recalled', { deliveryTimestamp: new Date(now + soon + 15000) });
  const { recallHandle } = await producer.send(kept);
  console.log(`recalled ${Boolean((await producer.recallMessage(delayed, recallHandle)).messageId)}`);
  for (const each of await received(endpoints, delayed, 3)) {
    console.log(`delayed ${described(each)} ${each.deliveryTimestamp - due.get(each.body.toString())}`);
  }
  const committed = (await received(endpoints, paid, 2)).map((each) => `committed ${described(each)}`);
  while (asked.size < 2) await later(100);
  for (const each of [...committed.sort(), ...[...asked].sort().map((body) => `asked ${body}`)]) console.log(each);
}

main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
