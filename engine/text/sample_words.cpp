// Every word of the built-in stories and its GPT-2 token. tests/test_sample_text.cpp holds the table equal to the real
// tokenizer and complete; a word that is not one token cannot be used in the grammar.
#include "engine/text/sample_grammar.h"

namespace gpt2 {
namespace {
// clang-format off
constexpr StoryWord kWords[] = {
    {" \"", 366}, {" After", 2293}, {" Anna", 11735}, {" Ben", 3932}, {" Emma", 18966}, {" From", 3574}, {" He", 679},
    {" Leo", 19632}, {" Lily", 20037}, {" Lucy", 22162}, {" Max", 5436}, {" Mia", 32189}, {" Now", 2735},
    {" One", 1881}, {" Sam", 3409}, {" She", 1375}, {" That", 1320}, {" Then", 3244}, {" Tom", 4186}, {" a", 257},
    {" ago", 2084}, {" an", 281}, {" and", 290}, {" angry", 7954}, {" around", 1088}, {" asked", 1965},
    {" asleep", 16039}, {" aunt", 25949}, {" away", 1497}, {" baker", 46412}, {" barn", 25203}, {" bear", 6842},
    {" bed", 3996}, {" began", 2540}, {" behind", 2157}, {" bell", 8966}, {" bench", 7624}, {" berries", 36322},
    {" best", 1266}, {" big", 1263}, {" blue", 4171}, {" boat", 8848}, {" boot", 6297}, {" box", 3091},
    {" boy", 2933}, {" brave", 14802}, {" bread", 8509}, {" broke", 6265}, {" broken", 5445}, {" brother", 3956},
    {" bush", 24484}, {" busy", 8179}, {" but", 475}, {" by", 416}, {" cake", 12187}, {" came", 1625}, {" can", 460},
    {" cart", 6383}, {" castle", 16669}, {" cave", 11527}, {" cheese", 9891}, {" clay", 21558}, {" clever", 14169},
    {" climb", 12080}, {" cold", 4692}, {" cookies", 14746}, {" could", 714}, {" cousin", 16933}, {" cried", 16896},
    {" crown", 12389}, {" cry", 3960}, {" cup", 6508}, {" curious", 11040}, {" dance", 9280}, {" danced", 39480},
    {" dark", 3223}, {" day", 1110}, {" dear", 13674}, {" deep", 2769}, {" delicious", 12625}, {" delighted", 20707},
    {" did", 750}, {" do", 466}, {" doctor", 6253}, {" doll", 3654}, {" door", 3420}, {" down", 866},
    {" drain", 14782}, {" dropped", 5710}, {" drum", 13026}, {" duck", 22045}, {" dusty", 36972}, {" eager", 11069},
    {" elephant", 20950}, {" evening", 6180}, {" every", 790}, {" fairy", 25607}, {" father", 2988}, {" fell", 3214},
    {" fisherman", 48750}, {" fix", 4259}, {" fixed", 5969}, {" forest", 8222}, {" found", 1043}, {" fox", 21831},
    {" fresh", 4713}, {" friendly", 8030}, {" friends", 2460}, {" garden", 11376}, {" gave", 2921},
    {" gentle", 10296}, {" giant", 6175}, {" girl", 2576}, {" glad", 9675}, {" glass", 5405}, {" glue", 22749},
    {" grandfather", 17695}, {" grandmother", 18410}, {" green", 4077}, {" hammer", 15554}, {" happy", 3772},
    {" have", 423}, {" he", 339}, {" heavy", 4334}, {" help", 1037}, {" her", 607}, {" hill", 12788}, {" his", 465},
    {" hole", 7604}, {" honest", 5508}, {" honey", 12498}, {" hook", 8011}, {" hot", 3024}, {" hugged", 41130},
    {" hurried", 31662}, {" into", 656}, {" it", 340}, {" jump", 4391}, {" jumped", 11687}, {" kind", 1611},
    {" king", 5822}, {" kitten", 42143}, {" lake", 13546}, {" lantern", 41207}, {" laughed", 13818},
    {" little", 1310}, {" lived", 5615}, {" log", 2604}, {" looked", 3114}, {" lost", 2626}, {" loud", 7812},
    {" loved", 6151}, {" made", 925}, {" magic", 5536}, {" me", 502}, {" morning", 3329}, {" mother", 2802},
    {" mouse", 10211}, {" mud", 17492}, {" muddy", 39085}, {" nail", 17864}, {" named", 3706}, {" narrow", 7135},
    {" near", 1474}, {" net", 2010}, {" night", 1755}, {" not", 407}, {" nuts", 14380}, {" odd", 5629}, {" of", 286},
    {" old", 1468}, {" on", 319}, {" one", 530}, {" out", 503}, {" owl", 39610}, {" paint", 7521}, {" paper", 3348},
    {" passed", 3804}, {" patience", 16336}, {" patient", 5827}, {" pie", 2508}, {" pink", 11398}, {" pit", 6028},
    {" play", 711}, {" pleased", 10607}, {" proud", 6613}, {" pulled", 5954}, {" puppy", 26188}, {" purple", 14032},
    {" queen", 16599}, {" rabbit", 22746}, {" reach", 3151}, {" read", 1100}, {" red", 2266}, {" ribbon", 29092},
    {" rich", 5527}, {" river", 7850}, {" rock", 3881}, {" rope", 17182}, {" rude", 22066}, {" sad", 6507},
    {" said", 531}, {" sailor", 43272}, {" sang", 25889}, {" sat", 3332}, {" sea", 5417}, {" secret", 3200},
    {" she", 673}, {" shells", 19679}, {" shy", 15800}, {" side", 1735}, {" sing", 1702}, {" sister", 6621},
    {" sleepy", 42023}, {" small", 1402}, {" snail", 47374}, {" so", 523}, {" sofa", 34902}, {" soft", 2705},
    {" some", 617}, {" soup", 17141}, {" stairs", 16046}, {" sticky", 23408}, {" strange", 6283}, {" string", 4731},
    {" strong", 1913}, {" summer", 3931}, {" sweet", 6029}, {" swim", 9422}, {" table", 3084}, {" tall", 7331},
    {" tape", 9154}, {" tea", 8887}, {" teacher", 4701}, {" thankful", 25535}, {" that", 326}, {" the", 262},
    {" there", 612}, {" they", 484}, {" time", 640}, {" tin", 19783}, {" tired", 10032}, {" to", 284},
    {" together", 1978}, {" tower", 10580}, {" tree", 5509}, {" tried", 3088}, {" turtle", 28699},
    {" umbrella", 25510}, {" uncle", 7711}, {" under", 739}, {" unhappy", 19283}, {" up", 510}, {" upon", 2402},
    {" upset", 9247}, {" vine", 17793}, {" walked", 6807}, {" wandered", 36036}, {" want", 765}, {" wanted", 2227},
    {" warm", 5814}, {" was", 373}, {" wax", 20302}, {" well", 880}, {" went", 1816}, {" were", 547}, {" wet", 9583},
    {" whispered", 25029}, {" who", 508}, {" wire", 6503}, {" wise", 10787}, {" witch", 16365}, {" with", 351},
    {" wizard", 18731}, {" wood", 4898}, {" wooden", 13510}, {" work", 670}, {" worried", 7960}, {" worry", 5490},
    {" yellow", 7872}, {" you", 345}, {" young", 1862}, {",", 11}, {",\"", 553}, {".", 13}, {"Do", 5211},
    {"Far", 21428}, {"I", 40}, {"Let", 5756}, {"Long", 14617}, {"Oh", 5812}, {"Once", 7454}, {"Please", 5492},
};
// clang-format on
} // namespace

std::span<const StoryWord> story_words() { return kWords; }

} // namespace gpt2
