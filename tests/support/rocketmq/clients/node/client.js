// Sends, receives and acks with the official Node client, plaintext as it is by default.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

// A consumer that receives nothing, until standard input ends.
async function listen(endpoints, topic) {
  const consumer = new SimpleConsumer({
    consumerGroup: `${topic}-listen`, endpoints, subscriptions: new Map().set(topic, '*'), awaitDuration: 5000, requestTimeout: 60000,
  });
  await consumer.startup();
  await new Promise((ended) => process.stdin.on('end', ended).resume());
  await consumer.shutdown();
}

async function main([endpoints, , topic, count]) {
  if (count === 'listen') return listen(endpoints, topic);
  const sent = new Map();
  const producer = new Producer({ endpoints, requestTimeout: 60000 });
  await producer.startup();
  for (let n = 0; n < Number(count); n++) {
    const body = `body ${n}`;
    const receipt = await producer.send({ topic, tag: `t${n % 2}`, keys: [`key-${n}`], body: Buffer.from(body) });
    sent.set(receipt.messageId, body);
  }
  await producer.shutdown();
  const received = new Map();
  const consumer = new SimpleConsumer({
    consumerGroup: `${topic}-simple`, endpoints, subscriptions: new Map().set(topic, '*'), awaitDuration: 5000, requestTimeout: 60000,
  });
  await consumer.startup();
  for (let tries = 0; tries < 20 && received.size < sent.size; tries++) {
    for (const message of await consumer.receive(16, 30000)) {
      received.set(message.messageId, message.body.toString());
      await consumer.ack(message);
    }
  }
  await consumer.shutdown();
  for (const [id, body] of sent) {
    if (received.get(id) !== body) throw new Error(`message ${id}: sent ${body}, received ${received.get(id)}`);
  }
  console.log(`OK ${received.size}`);
}

main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
